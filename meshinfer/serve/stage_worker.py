"""A stage's half of the ring: frame in, computation on the engine's thread, frame out.

Three owned tasks with short queues between them, so that the next frame is read and the last one
written while the engine computes. Frames keep their order throughout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from numpy.typing import NDArray

from meshinfer.core.step import Sampled, StageTiming, Step
from meshinfer.core.together import together
from meshinfer.errors import CacheLost, MeshInferError, ProtocolViolation
from meshinfer.link.base import Link
from meshinfer.serve.ring import RingFacts
from meshinfer.serve.stage_memory import StageMemory
from meshinfer.wire.cache_census import (
    Held,
    pack_census,
    unpack_census,
    unpack_lengths,
)
from meshinfer.wire.ring import CacheCensus, CacheKeep, SampledFrame, StepFailed, StepFrame
from meshinfer.wire.step_payload import pack_sampled, pack_step, unpack_step

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
class _Census:
    frame: CacheCensus
    held: tuple[Held, ...]


@dataclass(frozen=True, slots=True)
class _Keep:
    frame: CacheKeep
    lengths: dict[int, int]
    payload: bytes


_Inward = _Work | _Census | _Keep | StepFailed


@dataclass(frozen=True, slots=True)
class _Done:
    message: StepFrame | SampledFrame | StepFailed | CacheCensus | CacheKeep
    payload: bytes = b""


class StageWorker:
    """`index` is the stage's place in its pipeline; `clock` is monotonic seconds."""

    def __init__(
        self,
        memory: StageMemory,
        engine: Engine,
        facts: RingFacts,
        index: int,
        clock: Callable[[], float],
    ) -> None:
        self._memory = memory
        self._engine = engine
        self._facts = facts
        self._index = index
        self._clock = clock
        self._expected_step = 0
        self._idle_since = clock()
        self._inward: asyncio.Queue[_Inward] = asyncio.Queue(_QUEUE)
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
            await self._inward.put(self._taken(received.message, received.payload))

    def _taken(self, message: object, payload: memoryview) -> _Inward:
        """A frame that is what this edge expects now. Raises ProtocolViolation."""
        match message:
            case StepFailed():
                self._check_step(message)
                return message
            case StepFrame() if message.edge == self._index:
                return self._work(message, payload)
            case CacheCensus() if message.edge == self._index and not self._expected_step:
                self._check_plan(message)
                return _Census(
                    message,
                    unpack_census(payload, message.sequences, self._facts.vocabulary_size),
                )
            case CacheKeep() if message.edge == self._index:
                self._check_plan(message)
                lengths = dict(unpack_lengths(payload, message.sequences))
                return _Keep(message, lengths, bytes(payload))
        raise ProtocolViolation(f"{type(message).__name__} on edge {self._index}")

    def _work(self, message: StepFrame, payload: memoryview) -> _Work:
        arrived = self._clock()
        self._check_step(message)
        facts = self._facts
        step, hidden = unpack_step(
            message,
            payload,
            precision=facts.precision,
            width=None if self._index == 0 else facts.input_width,
            vocabulary_size=facts.vocabulary_size,
            context_length=facts.context_length,
        )
        checked = self._clock()
        wait_us = max(0, int((arrived - self._idle_since) * 1e6))
        return _Work(message, step, hidden, checked, wait_us, int((checked - arrived) * 1e6))

    def _check_plan(self, message: StepFrame | StepFailed | CacheCensus | CacheKeep) -> None:
        if (message.epoch, message.plan) != (self._facts.epoch, self._facts.plan):
            raise ProtocolViolation("a frame of another plan")

    def _check_step(self, message: StepFrame | StepFailed) -> None:
        self._check_plan(message)
        if message.step != self._expected_step:
            raise ProtocolViolation(f"step {message.step} where {self._expected_step} is due")
        self._expected_step += 1

    async def _compute(self) -> None:
        while True:
            done = await self._obey(await self._inward.get())
            if done is not None:
                await self._outward.put(done)
            self._idle_since = self._clock()

    async def _obey(self, inward: _Inward) -> _Done | None:
        match inward:
            case _Work():
                return await self._forward(inward)
            case _Census():
                known = inward.held if self._index else None
                held = await self._engine.run(self._memory.census, known)
                frame = replace(inward.frame, edge=self._index + 1, sequences=len(held))
                return _Done(frame, pack_census(held))
            case _Keep():
                await self._engine.run(self._memory.keep, inward.lengths)
                if self._memory.shape.last:
                    return None
                return _Done(replace(inward.frame, edge=self._index + 1), inward.payload)
            case StepFailed():
                return _Done(inward)

    async def _forward(self, work: _Work) -> _Done:
        started = self._clock()
        try:
            result, compute_s = await self._engine.run(self._timed, work.step, work.hidden)
        except MeshInferError as error:
            lost = error.sequences if isinstance(error, CacheLost) else ()
            facts = self._facts
            return _Done(
                StepFailed(facts.epoch, facts.plan, work.step.number, error.code, error.cause, lost)
            )
        return self._pack(work, result, started, compute_s)

    def _timed(
        self, step: Step, hidden: NDArray[Any] | None
    ) -> tuple[NDArray[Any] | tuple[Sampled, ...], float]:
        """On the engine's thread."""
        started = self._clock()
        return self._memory.forward(step, hidden), self._clock() - started

    def _pack(
        self,
        work: _Work,
        result: NDArray[Any] | tuple[Sampled, ...],
        started: float,
        compute_s: float,
    ) -> _Done:
        drawn = result if isinstance(result, tuple) else ()
        payload = pack_sampled(drawn) if isinstance(result, tuple) else pack_step(work.step, result)
        ended = self._clock()
        timing = StageTiming(
            wait_us=work.wait_us,
            queue_us=max(0, int((started - work.arrived) * 1e6)),
            compute_us=int(compute_s * 1e6),
            handle_us=work.check_us + max(0, int((ended - started - compute_s) * 1e6)),
        )
        frame, timings = work.frame, (*work.frame.timings, timing)
        if not self._memory.shape.last:
            return _Done(replace(frame, edge=self._index + 1, timings=timings), payload)
        alternatives = sum(len(one.alternatives) for one in drawn)
        return _Done(
            SampledFrame(frame.epoch, frame.plan, frame.step, len(drawn), alternatives, timings),
            payload,
        )

    async def _write(self, downstream: Link) -> None:
        while True:
            done = await self._outward.get()
            await downstream.send(done.message, done.payload)
