"""What an agent and its child processes tell each other over pipes.

A stage host owns OpenVINO, one stage's cache and its ring links; a weights process reads and cuts
models. A driver that hangs, aborts or leaks takes down a child, not the agent.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshinfer.core.draft import DraftTask
from meshinfer.core.fleet import Address
from meshinfer.core.ids import Epoch, ModelId, NodeId, PlanId
from meshinfer.core.model import StageManifest, UnitRange
from meshinfer.wire.commit import StagePhase


@dataclass(frozen=True, slots=True)
class StageJob:
    """Everything a stage host needs; it asks for nothing else."""

    state_folder: str  # holds the identity
    stage_folder: str  # verified files of the stage
    device: str
    threads: int  # 0: as many as the PC has
    deterministic: bool
    configuration: str  # "auto", "default" or one in its text form (core.configuration)
    probe_folder: str  # holds what a calibration is judged on, if the leader sent it
    epoch: Epoch
    plan: PlanId
    pipeline: int
    stage: int  # place in the pipeline
    stages: int
    precision: str
    cache_tokens: int
    input_width: int  # numbers a token that reach the stage; 0 where token ids do
    vocabulary_size: int
    context_length: int
    listen: Address  # where the consumer dials
    producer: NodeId  # whom to dial: the stage before, or the leader
    producer_addresses: tuple[Address, ...]
    consumer: NodeId  # who may dial: the stage behind, or the leader
    hop_delay_s: float = 0.0  # added to what other PCs send over the ring
    draft: DraftTask | None = None  # it is no stage, but a whole model that drafts


@dataclass(frozen=True, slots=True)
class StageGo:
    """Dial the producer; the plan is committed."""


@dataclass(frozen=True, slots=True)
class StageLeave:
    """The plan is over: leave the ring and keep the stage for the next job."""


@dataclass(frozen=True, slots=True)
class StageNews:
    phase: StagePhase
    progress: float
    code: str = ""
    why: str = ""
    calibration: str = ""  # from ready on: core.calibration_report as text
    trees: bool = False  # from ready on: the stage takes token trees


@dataclass(frozen=True, slots=True)
class StorePlace:
    """Where stages lie, and how much they may take there."""

    root: str
    read_only: tuple[str, ...]
    quota_bytes: int  # 0: no limit


@dataclass(frozen=True, slots=True)
class WeightsJob:
    """`pull`: have the model on disk, from `source` (as a person writes it; empty: the catalogue's
    model of that name) in the form `recipe` (empty: any). `split`: have its stages in the store.
    `probe`: tell what these stages are calibrated on, kept in `probes_folder`."""

    kind: str  # "pull", "split" or "probe"
    model: ModelId
    models_folder: str
    store: StorePlace
    ranges: tuple[UnitRange, ...]
    source: str = ""
    recipe: str = ""
    probes_folder: str = ""


@dataclass(frozen=True, slots=True)
class WeightsNews:
    phase: str
    done: int
    total: int  # 0: unknown


@dataclass(frozen=True, slots=True)
class WeightsDone:
    folder: str  # of the model
    manifests: tuple[StageManifest, ...]  # of the stages, when they were asked for
    probes: tuple[bytes, ...] = ()  # .npy of each stage, likewise; empty ones where there is none


@dataclass(frozen=True, slots=True)
class WeightsFailed:
    code: str
    cause: str
    remedy: str
