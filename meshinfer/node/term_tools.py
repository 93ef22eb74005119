"""What a term works with, and what a person decides about it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from meshinfer.core.fleet import FleetView
from meshinfer.core.ids import Digest, ModelId, NodeId, PlanId
from meshinfer.core.model import ModelShape, StageManifest, UnitRange
from meshinfer.core.plan import NoPlan, Plan
from meshinfer.core.seal import Seal
from meshinfer.link.base import Dialer
from meshinfer.node.draft_choice import DraftChoice
from meshinfer.node.plan_commit import Courier
from meshinfer.node.ring_desk import RingDesk
from meshinfer.serve.inbox import Encoder, Language

Tell = Callable[[str, int, int], None]
"""(phase, done, total) of something that takes a while; total 0 when it is not known."""


class Library(Protocol):
    """The models of this PC."""

    def choice(self) -> ModelId | None:
        """The model that this PC would serve."""
        ...

    async def ready(self, model: ModelId, tell: Tell) -> ModelShape:
        """Have the model on disk. Raises ModelNotFound, DiskFull, ..."""
        ...

    async def split(
        self, model: ModelId, ranges: tuple[UnitRange, ...], tell: Tell
    ) -> tuple[StageManifest, ...]: ...

    async def probes(
        self, model: ModelId, ranges: tuple[UnitRange, ...], tell: Tell
    ) -> tuple[bytes, ...]:
        """What each stage is calibrated on; empty where there is nothing."""
        ...

    async def text(self, model: ModelId, context_length: int) -> tuple[Encoder, Language]: ...

    def created(self, model: ModelId) -> int: ...

    async def draft(self, model: ModelId, tell: Tell) -> DraftChoice:
        """What may draft for it; one that a person named is fetched."""
        ...

    @property
    def speculates(self) -> bool:
        """Whether tokens may be guessed at all."""
        ...


class FleetMesh(Courier, Protocol):
    """A courier that also tells of changes."""

    def watch(self) -> AsyncIterator[FleetView]: ...


PlanFor = Callable[
    [ModelShape, FleetView, PlanId, frozenset[NodeId], ModelShape | None], Plan | NoPlan
]
"""The planner with this PC's options; the set holds PCs to leave out, the last is a draft model."""


@dataclass(frozen=True, slots=True)
class TermOptions:
    settle_s: float = 1.0  # no change of members for this long before a plan is made
    bench_s: float = 30.0  # a PC that failed its part is left out for this long
    retry_s: float = 2.0
    measuring_s: float = 15.0  # for PCs that still ask their devices what they can
    recheck_s: float = 1.0  # devices and free memory change without a change of members


@dataclass(frozen=True, slots=True)
class TermTools:
    """What a term works with."""

    mesh: FleetMesh
    library: Library
    plan_for: PlanFor
    dialer: Dialer
    seal: Callable[[Digest], Seal]
    desk: RingDesk
    clock: Callable[[], float]
    trace: Path | None = None
