"""The plan conversation between the leader and every PC of a plan.

leader              PC
Prepare      ->          may I count on this memory, in this epoch?
             <-  Prepared or Declined
Load         ->          fetch the stage, compile it, test it
             <-  StageReport (progress, at least every second), ... ready or failed
Activate     ->          dial your producer; frames of this plan are welcome from now on
LoadDraft    ->          once the ring serves: run the draft model, too; StageReport as above
Retire       ->          the plan is over: unload, drop the cache, forget the lease
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from meshinfer.core.draft import DraftTask
from meshinfer.core.ids import Epoch, NodeId, PlanId
from meshinfer.core.model import ModelShape, StageManifest
from meshinfer.core.plan import Plan
from meshinfer.core.seal import Seal


@dataclass(frozen=True, slots=True)
class Prepare:
    plan: Plan
    shape: ModelShape


@dataclass(frozen=True, slots=True)
class Prepared:
    plan: PlanId


@dataclass(frozen=True, slots=True)
class Declined:
    plan: PlanId
    code: str
    why: str
    epoch: Epoch  # the newest that this PC knows


@dataclass(frozen=True, slots=True)
class Load:
    """`manifests` are this PC's stages, in the order of the plan, with a seal for each; `sources`
    may hold their pieces."""

    epoch: Epoch
    plan: PlanId
    manifests: tuple[StageManifest, ...]
    seals: tuple[Seal, ...]
    sources: tuple[NodeId, ...]
    probes: tuple[bytes, ...]  # of each stage, what it is calibrated on (.npy); may be empty


@dataclass(frozen=True, slots=True)
class LoadDraft:
    """The PC is to run the plan's draft model as well, beside its stages if it has any. Reports
    come as for a stage; what fails ends the draft only."""

    epoch: Epoch
    plan: PlanId
    manifest: StageManifest
    seal: Seal
    sources: tuple[NodeId, ...]
    probe: bytes
    task: DraftTask


class StagePhase(StrEnum):
    FETCHING = "fetching"
    LOADING = "loading"
    TESTING = "testing"
    READY = "ready"
    SERVING = "serving"
    PARKED = "parked"  # between plans; between an agent and its stage host only
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class StageReport:
    plan: PlanId
    pipeline: int
    stage: int
    phase: StagePhase
    progress: float  # 0..1 within the phase
    code: str = ""  # of the error, when failed
    why: str = ""
    calibration: str = ""  # from ready on: core.calibration_report as text
    trees: bool = False  # from ready on: the stage takes token trees


@dataclass(frozen=True, slots=True)
class Activate:
    epoch: Epoch
    plan: PlanId


@dataclass(frozen=True, slots=True)
class Retire:
    epoch: Epoch
    plan: PlanId
    why: str
