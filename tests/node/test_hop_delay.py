"""An artificial delay on its way from the agent's options to the links of a ring."""

from __future__ import annotations

import asyncio

from meshinfer.core.fleet import Address, FleetView
from meshinfer.core.ids import NO_EPOCH, Epoch, NodeId, PlanId
from meshinfer.core.model import UnitRange
from meshinfer.core.plan import Pipeline, Plan, PlanKind, StagePlan
from meshinfer.engine.toy import ToyModel
from meshinfer.link.base import RING
from meshinfer.link.delayed import DelayedLink, HopDelay
from meshinfer.link.memory import MemoryNetwork
from meshinfer.node.ring_ends import JOIN_TIMEOUT_S, ExpectedConsumer, consume
from meshinfer.node.stage_job import KeeperOptions, ring_facts, stage_job
from meshinfer.wire import registry
from meshinfer.wire.child import StageJob
from meshinfer.wire.commit import Prepare

PRODUCER, CONSUMER = NodeId("producer"), NodeId("consumer")
LONG_S = 10.0
"""The most that may be asked for: two greetings that late would not be in time."""


def job() -> StageJob:
    shape = ToyModel(layers=2, hidden_size=8, front=2).shape()
    stage = StagePlan(PRODUCER, "CPU", UnitRange(0, 6), 0, 1, 0, 0, ())
    plan = Plan(
        PlanId("p"), Epoch(1, PRODUCER), shape.model, PlanKind.PIPELINE, "why", "f32", 64, 128,
        (Pipeline((stage,)),),
    )  # fmt: skip
    here = Address("here", 2)
    options = KeeperOptions("state", here, threads=1, deterministic=False, hop_delay_s=LONG_S)
    view = FleetView(PRODUCER, (), NO_EPOCH, None)
    return stage_job(Prepare(plan, shape), PRODUCER, (0, 0), options, view)


def test_a_stage_host_is_told_over_its_pipe() -> None:
    packed = registry.pack(job())
    message, _ = registry.unpack(packed, registry.welcome("child"))
    assert message == job()
    assert message.hop_delay_s == LONG_S


async def test_a_ring_comes_together_whatever_the_delay() -> None:
    assert 2 * LONG_S > JOIN_TIMEOUT_S
    network = MemoryNetwork()
    facts = ring_facts(job())
    expected = ExpectedConsumer(facts, 1, CONSUMER)
    there = Address("there", 1)
    accept = HopDelay(PRODUCER, LONG_S).handler(expected.accept)
    network.listen(there, PRODUCER, {RING: accept})
    dialer = HopDelay(CONSUMER, LONG_S).dialer(network.dialer(CONSUMER, Address("here", 1)))
    async with asyncio.timeout(LONG_S / 2):
        near = await consume(dialer, facts, 1, PRODUCER, (there,))
        far = await expected.link()
    assert isinstance(near, DelayedLink)
    assert isinstance(far, DelayedLink)
    expected.release()
    await near.close()
    await network.close()
