"""The answers that are under way, so that closing the server can wait for them and end them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator

from meshinfer.api.answer import Piece
from meshinfer.api.feed import AnswerFeed
from meshinfer.errors import NotReady


class RunningAnswers:
    """Owns no task: every feed belongs to the HTTP handler that listens to it."""

    def __init__(self) -> None:
        self._feeds: set[AnswerFeed] = set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._closed = False

    @contextlib.asynccontextmanager
    async def listen(self, pieces: AsyncGenerator[Piece, None]) -> AsyncIterator[AnswerFeed]:
        """A feed of `pieces` for as long as the context. Raises NotReady after `refuse`."""
        if self._closed:
            raise _stopping()
        feed = AnswerFeed(pieces)
        self._feeds.add(feed)
        self._empty.clear()
        try:
            async with feed:
                yield feed
        finally:
            self._feeds.discard(feed)
            if not self._feeds:
                self._empty.set()

    def refuse(self) -> None:
        """Start no further answers."""
        self._closed = True

    def fail(self) -> None:
        """End all running answers with an error that their clients see."""
        for feed in self._feeds:
            feed.fail(_stopping())

    async def wait_empty(self, patience_s: float) -> None:
        """Until no answer runs, at most `patience_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await self._empty.wait()


def _stopping() -> NotReady:
    return NotReady("The agent of this PC is stopping.", "Ask another PC of the fleet.")
