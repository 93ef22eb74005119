"""What a stage host is told, from a plan and the model's shape."""

from __future__ import annotations

import pytest

from meshinfer.core.fleet import Address, FleetView
from meshinfer.core.ids import Epoch, NodeId, PlanId
from meshinfer.core.model import UnitRange
from meshinfer.core.plan import Pipeline, Plan, PlanKind, StagePlan
from meshinfer.engine.toy import ToyModel
from meshinfer.node.stage_job import KeeperOptions, ring_facts, stage_job
from meshinfer.wire.commit import Prepare

LEADER = NodeId("leader")
SHAPE = ToyModel(layers=2, hidden_size=8, front=2).shape()
RANGES = (UnitRange(0, 2), UnitRange(2, 3), UnitRange(3, 6))
OPTIONS = KeeperOptions("state", Address("here", 2), threads=1, deterministic=False)


def prepared() -> Prepare:
    stages = tuple(
        StagePlan(NodeId(name), "CPU", units, 0, 1, 0, 0, (Address(name, 1),))
        for name, units in zip("abc", RANGES, strict=True)
    )
    plan = Plan(
        PlanId("p"), Epoch(1, LEADER), SHAPE.model, PlanKind.PIPELINE, "why", "f32", 64, 128,
        (Pipeline(stages),),
    )  # fmt: skip
    return Prepare(plan, SHAPE)


@pytest.mark.parametrize(
    ("stage", "width", "producer", "consumer"),
    [(0, 0, "leader", "b"), (1, 12, "a", "c"), (2, 10, "b", "leader")],
)
def test_each_stage_is_told_its_neighbours_and_the_width_of_its_own_edge(
    stage: int, width: int, producer: str, consumer: str
) -> None:
    job = stage_job(prepared(), LEADER, (0, stage), OPTIONS, FleetView(LEADER, (), None, None))
    assert (job.stage, job.stages, job.input_width) == (stage, 3, width)
    assert (job.producer, job.consumer) == (producer, consumer)
    assert ring_facts(job).input_width == width
    assert ring_facts(job).vocabulary_size == SHAPE.vocabulary_size
