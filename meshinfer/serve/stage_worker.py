"""A stage's half of the ring: frame in, computation on the engine's thread, frame out.

Three owned tasks with short queues between them, so that the next frame is read and the last one
written while the engine computes. Steps keep their order throughout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from meshinfer.core.request import Sampling
from meshinfer.core.step import Sampled, StageTiming, Step
from meshinfer.core.together import together
from meshinfer.engine.sampling import draw
from meshinfer.engine.stage import Stage
from meshinfer.errors import MeshInferError, ProtocolViolation
from meshinfer.link.base import Link
from meshinfer.serve.ring import RingFacts
from meshinfer.wire.ring import (
    SampledFrame,
    StepFailed,
    StepFrame,
    pack_sampled,
    pack_step,
    unpack_step,
)

_QUEUE = 8  # frames; a full queue is back-pressure on the link


class Engine(Protocol):
    """The thread that owns the stage."""

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class _Work:
    frame: StepFrame
    step: Step
    hidden: NDArray[Any] | None
    arrived: float
    wait_us: int
    check_us: int


@dataclass(frozen=True, slots=True)
class _Done:
    message: StepFrame | SampledFrame | StepFailed
    payload: bytes


class StageWorker:
    """`index` is the stage's place in its pipeline; `clock` is monotonic seconds."""

    def __init__(
        self,
        stage: Stage,
        engine: Engine,
        facts: RingFacts,
        index: int,
        clock: Callable[[], float],
    ) -> None:
        self._stage = stage
        self._engine = engine
        self._facts = facts
        self._index = index
        self._clock = clock
        self._expected_step = 0
        self._idle_since = clock()
        self._inward: asyncio.Queue[_Work | StepFailed] = asyncio.Queue(_QUEUE)
        self._outward: asyncio.Queue[_Done] = asyncio.Queue(_QUEUE)

    async def run(self, upstream: Link, downstream: Link) -> None:
        """Until a link breaks (PeerLost) or a frame breaks the rules (ProtocolViolation).

        Closes both links then, so that the break travels around the ring at once.
        """
        try:
            await together(self._read(upstream), self._compute(), self._write(downstream))
        finally:
            await upstream.close("the stage ended")
            await downstream.close("the stage ended")

    async def _read(self, upstream: Link) -> None:
        while True:
            received = await upstream.receive()
            arrived = self._clock()
            message = received.message
            if isinstance(message, StepFailed):
                self._check(message.epoch, message.plan, message.step)
                await self._inward.put(message)
                continue
            if not isinstance(message, StepFrame) or message.edge != self._index:
                raise ProtocolViolation(f"{type(message).__name__} on edge {self._index}")
            self._check(message.epoch, message.plan, message.step)
            step, hidden = self._unpack(message, received.payload)
            checked = self._clock()
            wait_us = max(0, int((arrived - self._idle_since) * 1e6))
            check_us = int((checked - arrived) * 1e6)
            await self._inward.put(_Work(message, step, hidden, checked, wait_us, check_us))

    def _check(self, epoch: object, plan: object, step: int) -> None:
        if (epoch, plan) != (self._facts.epoch, self._facts.plan):
            raise ProtocolViolation("a frame of another plan")
        if step != self._expected_step:
            raise ProtocolViolation(f"step {step} where {self._expected_step} is due")
        self._expected_step += 1

    def _unpack(self, frame: StepFrame, payload: memoryview) -> tuple[Step, NDArray[Any] | None]:
        facts = self._facts
        return unpack_step(
            frame,
            payload,
            precision=facts.precision,
            width=None if self._index == 0 else facts.input_width,
            vocabulary_size=facts.vocabulary_size,
            context_length=facts.context_length,
        )

    async def _compute(self) -> None:
        while True:
            work = await self._inward.get()
            if isinstance(work, StepFailed):
                await self._outward.put(_Done(work, b""))
                continue
            started = self._clock()
            try:
                result, compute_s = await self._engine.run(self._forward, work.step, work.hidden)
            except MeshInferError as error:
                facts = self._facts
                failed = StepFailed(
                    facts.epoch, facts.plan, work.step.number, error.code, error.cause
                )
                await self._outward.put(_Done(failed, b""))
                continue
            await self._outward.put(self._pack(work, result, started, compute_s))
            self._idle_since = self._clock()

    def _forward(
        self, step: Step, hidden: NDArray[Any] | None
    ) -> tuple[NDArray[Any] | tuple[Sampled, ...], float]:
        """On the engine's thread: compute, and at the last stage draw."""
        started = self._clock()
        result: NDArray[Any] | tuple[Sampled, ...] = self._stage.forward(step, hidden)
        if self._stage.shape.last:
            assert isinstance(result, np.ndarray)
            result = draw(result, logit_rows(step)) if step.logit_count else ()
        return result, self._clock() - started

    def _pack(
        self,
        work: _Work,
        result: NDArray[Any] | tuple[Sampled, ...],
        started: float,
        compute_s: float,
    ) -> _Done:
        payload = (
            pack_sampled(result) if isinstance(result, tuple) else pack_step(work.step, result)
        )
        ended = self._clock()
        timing = StageTiming(
            wait_us=work.wait_us,
            queue_us=max(0, int((started - work.arrived) * 1e6)),
            compute_us=int(compute_s * 1e6),
            handle_us=work.check_us + max(0, int((ended - started - compute_s) * 1e6)),
        )
        timings = (*work.frame.timings, timing)
        if isinstance(result, tuple):
            frame = work.frame
            message: StepFrame | SampledFrame = SampledFrame(
                frame.epoch, frame.plan, frame.step, len(result), timings
            )
        else:
            message = replace(work.frame, edge=self._index + 1, timings=timings)
        return _Done(message, payload)

    async def _write(self, downstream: Link) -> None:
        while True:
            done = await self._outward.get()
            await downstream.send(done.message, done.payload)


def logit_rows(step: Step) -> list[tuple[Sampling, int]]:
    """For every wanted logit row: how to draw, and the position of the token that is drawn."""
    rows = []
    for row in step.rows:
        end = row.position + row.count
        rows += [(row.sampling, end - row.logits + index + 1) for index in range(row.logits)]
    return rows
