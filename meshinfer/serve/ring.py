"""The leader's end of the ring: steps go to stage 0, what was drawn comes from the last stage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from meshinfer.core.ids import Epoch, PlanId
from meshinfer.core.step import Sampled, StageTiming, Step
from meshinfer.errors import MeshInferError, ProtocolViolation, from_code
from meshinfer.link.base import Link
from meshinfer.wire.ring import SampledFrame, StepFailed, StepFrame, pack_step, unpack_sampled


@dataclass(frozen=True, slots=True)
class RingFacts:
    """What every frame of one pipeline must carry, and the bounds of what it may hold."""

    epoch: Epoch
    plan: PlanId
    pipeline: int
    stages: int
    precision: str
    input_width: int  # numbers a token that reach this stage; 0 where token ids do
    vocabulary_size: int
    context_length: int


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What came back for one step: drawn tokens in row order, or the error that stopped it."""

    step: int
    drawn: tuple[Sampled, ...]
    error: MeshInferError | None
    timings: tuple[StageTiming, ...]  # one a stage
    round_trip_us: int


class LeaderRing:
    """`head` leads to stage 0, `tail` comes from the last stage; both are already greeted."""

    def __init__(
        self, head: Link, tail: Link, facts: RingFacts, clock: Callable[[], float]
    ) -> None:
        self._head = head
        self._tail = tail
        self._facts = facts
        self._clock = clock
        self._sent: dict[int, float] = {}
        self._next_back = 0

    async def send(self, step: Step) -> None:
        """Start a step. Raises PeerLost."""
        facts = self._facts
        frame = StepFrame(
            epoch=facts.epoch,
            plan=facts.plan,
            edge=0,
            step=step.number,
            rows=len(step.rows),
            tokens=step.token_count,
            released=step.released,
            timings=(),
        )
        self._sent[step.number] = self._clock()
        await self._head.send(frame, pack_step(step, None))

    async def receive(self) -> StepOutcome:
        """The next outcome; steps come back in the order in which they went.

        Raises PeerLost, ProtocolViolation.
        """
        received = await self._tail.receive()
        message = received.message
        if not isinstance(message, SampledFrame | StepFailed):
            raise ProtocolViolation(f"{type(message).__name__} from the last stage")
        if (message.epoch, message.plan) != (self._facts.epoch, self._facts.plan):
            raise ProtocolViolation("an answer of another plan")
        if message.step != self._next_back or message.step not in self._sent:
            raise ProtocolViolation(f"step {message.step} came back out of turn")
        self._next_back += 1
        round_trip_us = int((self._clock() - self._sent.pop(message.step)) * 1e6)
        if isinstance(message, StepFailed):
            error = from_code(message.code, message.cause)
            return StepOutcome(message.step, (), error, (), round_trip_us)
        drawn = unpack_sampled(message, received.payload, self._facts.vocabulary_size)
        return StepOutcome(message.step, drawn, None, message.timings, round_trip_us)

    def waiting_s(self) -> float:
        """How long the oldest step has been under way; 0 when there is none."""
        oldest = next(iter(self._sent.values()), None)
        return 0.0 if oldest is None else self._clock() - oldest

    async def close(self, reason: str) -> None:
        await self._head.close(reason)
        await self._tail.close(reason)
