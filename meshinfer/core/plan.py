"""Who computes what. Made by the planner, agreed in two phases, then never changed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from meshinfer.core.fleet import Address
from meshinfer.core.ids import Epoch, ModelId, NodeId, PlanId
from meshinfer.core.model import UnitRange


class PlanKind(StrEnum):
    SINGLE = "single"
    REPLICAS = "replicas"
    PIPELINE = "pipeline"
    HYBRID = "hybrid"


@dataclass(frozen=True, slots=True)
class StagePlan:
    """One stage on one device of one PC."""

    node: NodeId
    device: str
    units: UnitRange
    first_layer: int
    last_layer: int  # inclusive, as people count
    weight_bytes: int
    cache_bytes: int
    ring_addresses: tuple[Address, ...]  # where its consumer dials it

    @property
    def memory_bytes(self) -> int:
        return self.weight_bytes + self.cache_bytes


@dataclass(frozen=True, slots=True)
class Pipeline:
    stages: tuple[StagePlan, ...]  # in the order of the layers


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """A small model that guesses what the large one will say: whole, on one device of one PC."""

    model: ModelId
    stage: StagePlan
    vocabulary_size: int  # of its own head, which may have more rows than the large model's
    context_length: int  # tokens of a single sequence
    cache_tokens: int  # of all sequences together


@dataclass(frozen=True, slots=True)
class Plan:
    """One generation of serving. Stages refuse every frame that does not carry its epoch and id."""

    id: PlanId
    epoch: Epoch
    model: ModelId
    kind: PlanKind
    why: str  # one sentence for people
    precision: str  # "f32" or "bf16": computation, cache and ports
    context_length: int  # tokens a single sequence may have
    cache_tokens: int  # tokens that all sequences together may have
    pipelines: tuple[Pipeline, ...]
    draft: DraftPlan | None = None

    @property
    def draft_pipeline(self) -> int:
        """What the draft is called where stages are named by (pipeline, stage): behind all
        pipelines, stage 0."""
        return len(self.pipelines)


@dataclass(frozen=True, slots=True)
class NoPlan:
    """Why the model cannot be served now."""

    why: str
    needed_bytes: int
    available_bytes: int
    rooms: tuple[tuple[NodeId, int], ...]  # what each PC could give
