"""The PC with the draft model: known tokens in, guesses out, for as long as guesses are of use.

Runs ahead: while the large model verifies, it looks behind what was sent. Two owned tasks; what the
leader says is taken between two steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from meshinfer.core.draft import DraftNode, Horizon
from meshinfer.core.ids import Epoch, PlanId
from meshinfer.core.together import together
from meshinfer.engine.stage import Stage
from meshinfer.errors import CacheLost, ProtocolViolation, StageFailed
from meshinfer.link.base import Link
from meshinfer.serve.guess_candidates import guesses
from meshinfer.serve.guess_steps import GuessStep, GuessSteps
from meshinfer.wire.draft import (
    MAX_NODES,
    DraftEnd,
    DraftNodes,
    DraftText,
    pack_nodes,
    unpack_tokens,
)

_MOST_FAILURES = 3
"""Steps that fail in a row before the draft model is given up."""


class Engine(Protocol):
    """The thread that owns the stage."""

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class DraftModel:
    """What the worker must know of the plan and of the model that it runs."""

    epoch: Epoch
    plan: PlanId
    vocabulary_size: int  # of the large model: ids beyond it are padding of the draft's head
    context_length: int  # of the draft model
    ends: frozenset[int] = frozenset()  # tokens behind which nothing follows
    columns: NDArray[np.int64] | None = None  # ids of a trimmed head's columns


@dataclass(frozen=True, slots=True)
class _Done:
    nodes: list[tuple[int, DraftNode]]
    rows: int
    compute_us: int


class DraftWorker:
    """`stage` is the whole draft model; `clock` is monotonic seconds."""

    def __init__(
        self, stage: Stage, engine: Engine, model: DraftModel, clock: Callable[[], float]
    ) -> None:
        shape = stage.shape
        self._stage = stage
        self._engine = engine
        self._model = model
        self._clock = clock
        self._steps = GuessSteps(
            shape.cache_tokens, shape.block_size, model.context_length, model.ends
        )
        self._heard: asyncio.Queue[tuple[DraftText | DraftEnd, list[int]]] = asyncio.Queue(256)
        self._news = asyncio.Event()

    async def run(self, link: Link) -> None:
        """Until the link breaks (PeerLost), a message breaks the rules (ProtocolViolation) or the
        stage fails again and again (StageFailed). Closes the link then."""
        try:
            await together(self._read(link), self._guess(link))
        finally:
            await link.close("the draft ended")

    async def _read(self, link: Link) -> None:
        while True:
            received = await link.receive()
            message, tokens = received.message, list[int]()
            if isinstance(message, DraftText):
                tokens = unpack_tokens(received.payload, message, self._model.vocabulary_size)
            elif not isinstance(message, DraftEnd):
                raise ProtocolViolation(f"{type(message).__name__} to a draft")
            if (message.epoch, message.plan) != (self._model.epoch, self._model.plan):
                raise ProtocolViolation("a text of another plan")
            await self._heard.put((message, tokens))
            self._news.set()

    async def _guess(self, link: Link) -> None:
        failures = 0
        while True:
            self._take()
            step = self._steps.next()
            if step is None:
                await self._news.wait()
                continue
            try:
                done = await self._engine.run(self._compute, step)
                failures = 0
            except StageFailed as error:
                failures += 1
                if failures == _MOST_FAILURES:
                    raise
                self._steps.forget(self._lost(step, error))
                continue
            await self._send(link, done)

    def _take(self) -> None:
        """What the leader said meanwhile."""
        self._news.clear()
        while not self._heard.empty():
            message, tokens = self._heard.get_nowait()
            if isinstance(message, DraftEnd):
                for sequence in message.sequences:
                    self._steps.end(sequence)
            elif not self._steps.know(
                message.sequence,
                message.position,
                tokens,
                Horizon(message.depth, message.least),
                message.sampling,
            ):
                raise ProtocolViolation("a text for drafts begins behind its end")

    def _compute(self, step: GuessStep) -> _Done:
        """On the engine's thread."""
        begin = self._clock()
        logits = self._stage.forward(step.step, None)
        nodes: list[tuple[int, DraftNode]] = []
        wanted = [(one.sampling, one.position) for one in step.whole]
        if wanted:
            model = self._model
            found = guesses(logits, wanted, model.columns, model.vocabulary_size)
            for expansion, pairs in zip(step.whole, found, strict=True):
                made = self._steps.expand(expansion, pairs)
                nodes += [(expansion.sequence, node) for node in made]
        return _Done(nodes, step.step.token_count, int((self._clock() - begin) * 1e6))

    async def _send(self, link: Link, done: _Done) -> None:
        """Nothing is said of a step that only took a piece of a long text."""
        assert len(done.nodes) <= MAX_NODES
        if done.nodes:
            await link.send(
                DraftNodes(
                    epoch=self._model.epoch,
                    plan=self._model.plan,
                    count=len(done.nodes),
                    rows=done.rows,
                    compute_us=done.compute_us,
                ),
                pack_nodes(done.nodes),
            )

    @staticmethod
    def _lost(step: GuessStep, error: StageFailed) -> list[int]:
        """Sequences whose cache cannot be relied upon any more."""
        keys = [row.sequence for row in step.step.rows]
        return [*keys, *error.sequences] if isinstance(error, CacheLost) else keys
