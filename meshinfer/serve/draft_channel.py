"""Keeps a draft model informed, and takes what it guesses.

Runs beside the decode loop for as long as the draft's link lives. Nothing waits for it: a draft
that is slow, wrong or gone costs only its drafts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from typing import Protocol

from meshinfer.core.draft import Horizon
from meshinfer.core.request import Sampling
from meshinfer.core.together import together
from meshinfer.serve.draft_link import DraftNews
from meshinfer.serve.scheduler import Scheduler
from meshinfer.serve.sequence import Sequence
from meshinfer.serve.speculation import Speculation


class DraftPeer(Protocol):
    """The draft's end (serve.draft_link)."""

    async def tell(
        self,
        sequence: int,
        position: int,
        tokens: SequenceOf[int],
        horizon: Horizon,
        sampling: Sampling,
    ) -> None: ...

    async def end(self, sequences: SequenceOf[int]) -> None: ...

    async def receive(self) -> DraftNews: ...


class DraftChannel:
    """`wake` has the decode loop look for a step again."""

    def __init__(
        self,
        scheduler: Scheduler,
        speculation: Speculation,
        peer: DraftPeer,
        wake: Callable[[], None],
    ) -> None:
        self._scheduler = scheduler
        self._speculation = speculation
        self._peer = peer
        self._wake = wake
        self._told: dict[int, int] = {}  # tokens, by the sequence's key
        self._changed = asyncio.Event()

    def notice(self) -> None:
        """Sequences may have started, grown or ended."""
        self._changed.set()

    async def run(self) -> None:
        """Until the link ends, whose error is raised."""
        try:
            await together(self._tell(), self._hear())
        finally:
            self._speculation.draft_lost()
            self._wake()

    async def _tell(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            running = {one.key: one for one in self._scheduler.running_sequences}
            await self._end([key for key in self._told if key not in running])
            decoding = sum(one.decodes for one in running.values())
            if self._speculation.wants_drafts(decoding):
                for key, sequence in running.items():
                    await self._say(key, sequence)

    async def _end(self, gone: list[int]) -> None:
        for key in gone:
            del self._told[key]
            self._speculation.book.close(key)
        if gone:
            await self._peer.end(gone)

    async def _say(self, key: int, sequence: Sequence) -> None:
        """What is known of a sequence since the last time."""
        told, known = self._told.get(key, 0), len(sequence.tokens)
        if told == known or not sequence.drafts_allowed:
            return
        if not told:
            self._speculation.book.open(key, sequence.tokens)
        self._told[key] = known
        horizon = self._speculation.horizon(sequence)
        await self._peer.tell(key, told, sequence.tokens[told:], horizon, sequence.sampling)

    async def _hear(self) -> None:
        while True:
            news = await self._peer.receive()
            self._speculation.take(news.nodes, news.rows, news.compute_s)
            self._wake()
