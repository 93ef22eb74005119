"""The leader's end of the ring: steps go to stage 0, what was drawn comes from the last stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from meshinfer.core.ids import Epoch, PlanId
from meshinfer.core.step import Sampled, StageTiming, Step
from meshinfer.errors import MeshInferError, ProtocolViolation, from_code
from meshinfer.link.base import Link
from meshinfer.wire.cache_census import MAX_SEQUENCES, Held, pack_lengths, unpack_census
from meshinfer.wire.ring import CacheCensus, CacheKeep, SampledFrame, StepFailed, StepFrame
from meshinfer.wire.step_payload import pack_step, unpack_sampled


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
    sent_s: float  # on the leader's clock
    round_trip_us: int
    rows: int
    tokens: int
    prompt_tokens: int  # of them, those that are no decoding
    lost: tuple[int, ...] = ()  # sequences that a stage does not hold: the step was not computed


@dataclass(frozen=True, slots=True)
class _Flight:
    sent_s: float
    rows: int
    tokens: int
    prompt_tokens: int
    wanted: tuple[int, ...]  # for each token that is due: how many alternatives come with it


class LeaderRing:
    """`head` leads to stage 0, `tail` comes from the last stage; both are already greeted."""

    def __init__(
        self, head: Link, tail: Link, facts: RingFacts, clock: Callable[[], float]
    ) -> None:
        self._head = head
        self._tail = tail
        self.facts = facts
        self._clock = clock
        self._flights: dict[int, _Flight] = {}
        self._next_back = 0

    async def census(self) -> tuple[Held, ...]:
        """What all stages hold of earlier plans. Before the first step.

        Raises PeerLost, ProtocolViolation.
        """
        facts = self.facts
        await self._head.send(CacheCensus(facts.epoch, facts.plan, 0, 0))
        received = await self._tail.receive()
        message = received.message
        if not isinstance(message, CacheCensus) or message.edge != facts.stages:
            raise ProtocolViolation(f"{type(message).__name__} where a census is due")
        self._check(message)
        return unpack_census(received.payload, message.sequences, facts.vocabulary_size)

    async def keep(self, lengths: Mapping[int, int]) -> None:
        """Tell all stages what lives; behind the steps that were sent. Raises PeerLost."""
        named = tuple(lengths.items())[:MAX_SEQUENCES]
        facts = self.facts
        await self._head.send(
            CacheKeep(facts.epoch, facts.plan, 0, len(named)), pack_lengths(named)
        )

    async def send(self, step: Step) -> None:
        """Start a step. Raises PeerLost."""
        facts = self.facts
        frame = StepFrame(
            epoch=facts.epoch,
            plan=facts.plan,
            edge=0,
            step=step.number,
            rows=len(step.rows),
            tokens=step.token_count,
            released=step.released,
            openings=step.openings,
            timings=(),
        )
        wanted = tuple(row.sampling.logprobs or 0 for row in step.rows for _ in range(row.logits))
        flight = _Flight(
            sent_s=self._clock(),
            rows=len(step.rows),
            tokens=step.token_count,
            prompt_tokens=sum(row.count for row in step.rows if not row.decodes),
            wanted=wanted,
        )
        self._flights[step.number] = flight
        await self._head.send(frame, pack_step(step, None))

    async def receive(self) -> StepOutcome:
        """The next outcome; steps come back in the order in which they went.

        Raises PeerLost, ProtocolViolation.
        """
        received = await self._tail.receive()
        message = received.message
        if not isinstance(message, SampledFrame | StepFailed):
            raise ProtocolViolation(f"{type(message).__name__} from the last stage")
        self._check(message)
        if message.step != self._next_back or message.step not in self._flights:
            raise ProtocolViolation(f"step {message.step} came back out of turn")
        self._next_back += 1
        flight = self._flights.pop(message.step)
        round_trip_us = int((self._clock() - flight.sent_s) * 1e6)
        drawn: tuple[Sampled, ...] = ()
        error: MeshInferError | None = None
        lost: tuple[int, ...] = ()
        if isinstance(message, StepFailed):
            error, lost = from_code(message.code, message.cause), message.lost
        else:
            facts = self.facts
            drawn = unpack_sampled(message, received.payload, flight.wanted, facts.vocabulary_size)
        return StepOutcome(
            step=message.step,
            drawn=drawn,
            error=error,
            timings=() if isinstance(message, StepFailed) else message.timings,
            sent_s=flight.sent_s,
            round_trip_us=round_trip_us,
            rows=flight.rows,
            tokens=flight.tokens,
            prompt_tokens=flight.prompt_tokens,
            lost=lost,
        )

    def waiting_s(self) -> float:
        """How long the oldest step has been under way; 0 when there is none."""
        oldest = next(iter(self._flights.values()), None)
        return 0.0 if oldest is None else self._clock() - oldest.sent_s

    async def close(self, reason: str) -> None:
        await self._head.close(reason)
        await self._tail.close(reason)

    def _check(self, message: CacheCensus | SampledFrame | StepFailed) -> None:
        if (message.epoch, message.plan) != (self.facts.epoch, self.facts.plan):
            raise ProtocolViolation("an answer of another plan")
