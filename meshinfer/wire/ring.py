"""The ring conversation: steps and activations go down the stages, tokens come back to the leader.

`wire.step_payload` has the payload of `StepFrame` and `SampledFrame`, `wire.cache_census` that of
`CacheCensus` and `CacheKeep`.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshinfer.core.ids import Epoch, PlanId
from meshinfer.core.step import Opening, StageTiming


@dataclass(frozen=True, slots=True)
class RingHello:
    """First message of a consumer that dials its producer: which plan, which edge.

    Edge k feeds stage k; edge n of an n-stage pipeline feeds the leader.
    """

    epoch: Epoch
    plan: PlanId
    pipeline: int
    edge: int


@dataclass(frozen=True, slots=True)
class RingWelcome:
    """The producer's answer: it will send this plan's steps on this link."""

    plan: PlanId


@dataclass(frozen=True, slots=True)
class StepFrame:
    """Header of one step on one edge."""

    epoch: Epoch
    plan: PlanId
    edge: int
    step: int
    rows: int
    tokens: int
    released: tuple[int, ...]
    openings: tuple[Opening, ...]
    timings: tuple[StageTiming, ...]  # of the stages already passed


@dataclass(frozen=True, slots=True)
class SampledFrame:
    """Header of what the last stage drew for one step."""

    epoch: Epoch
    plan: PlanId
    step: int
    count: int
    alternatives: int  # of all drawn tokens together
    timings: tuple[StageTiming, ...]


@dataclass(frozen=True, slots=True)
class StepFailed:
    """A stage could not compute a step; the ring lives on.

    `lost` names sequences of the step (or those that its rows fork from) which that stage does not
    hold as far as the rows say: they have to be computed again, the other rows only repeated. Empty
    for any other failure, which ends all of the step's sequences.
    """

    epoch: Epoch
    plan: PlanId
    step: int
    code: str
    cause: str
    lost: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CacheCensus:
    """What do all stages still hold of earlier plans? Once around the ring, before the first step:
    each stage keeps of the list what it holds as well."""

    epoch: Epoch
    plan: PlanId
    edge: int
    sequences: int


@dataclass(frozen=True, slots=True)
class CacheKeep:
    """What lives, for every stage: cut to this, and forget all others. Sent after a census, and
    now and then as a lease: the end of a sequence may have been lost with an older leader."""

    epoch: Epoch
    plan: PlanId
    edge: int
    sequences: int
