"""The safety and liveness of the fleet over many random histories.

MESHINFER_SIMULATOR_SEEDS asks for more than the default number, e.g. 100000 for a night.
"""

from __future__ import annotations

import os
from random import Random

import pytest

from meshinfer.core.ids import NodeId
from tests.mesh.simulator import Simulator

SEEDS = int(os.environ.get("MESHINFER_SIMULATOR_SEEDS", "400"))
HEAL_S = 10.0


def random_faults(fleet: Simulator, faults: Random) -> None:
    """A few seconds in which anything may go wrong."""
    nodes = list(fleet.pcs)
    for _ in range(faults.randrange(1, 5)):
        node, other = faults.choice(nodes), faults.choice(nodes)
        match faults.randrange(7):
            case 0 if fleet.pcs[node].state is not None:
                fleet.kill(node)
            case 1 if fleet.pcs[node].state is None:
                fleet.start(node)
            case 2 if fleet.pcs[node].state is not None:
                fleet.kill(node)
                fleet.start(node)
            case 3 if node != other:
                fleet.cut(node, other)
            case 4:
                fleet.partition(faults.sample(nodes, faults.randrange(1, len(nodes))))
            case 5:
                fleet.cuts.clear()
            case 6 if fleet.pcs[node].state is not None:
                fleet.pause(node, faults.choice([0.5, 2.0, 4.5, 8.0]))
        fleet.loss = faults.choice([0.0, 0.0, 0.02, 0.2])
        fleet.delay_s = faults.choice([0.001, 0.001, 0.05, 0.2])
        fleet.advance(faults.choice([0.1, 1.0, 3.0, 6.0]))


def run_history(seed: int) -> Simulator:
    faults = Random(seed)
    fleet = Simulator(seed, faults.randrange(2, 6))
    for node in fleet.pcs:
        fleet.start(node)
        fleet.advance(faults.choice([0.0, 0.05, 0.7, 2.0]))
    random_faults(fleet, faults)
    fleet.heal()
    for pc in fleet.pcs.values():
        fleet.advance(max(0.0, pc.paused_until - fleet.now))
    fleet.delay_s = 0.002
    fleet.advance(HEAL_S)
    return fleet


@pytest.mark.slow
def test_any_history_ends_with_one_leader_and_stays_calm() -> None:
    for seed in range(SEEDS):
        fleet = run_history(seed)
        assert fleet.agreed(), f"seed {seed}: {fleet.leaders()}, {fleet.led}"
        before = len(fleet.elections)
        fleet.advance(2.0)
        assert len(fleet.elections) == before, f"seed {seed} elects on: {fleet.led}"


@pytest.mark.parametrize("size", [2, 3, pytest.param(8, marks=pytest.mark.slow)])
def test_a_calm_fleet_elects_once(size: int) -> None:
    fleet = Simulator(1, size)
    for node in fleet.pcs:
        fleet.start(node)
    fleet.advance(60.0)
    assert fleet.agreed()
    assert len(fleet.elections) <= 2


def test_a_lone_pc_leads_itself_soon() -> None:
    fleet = Simulator(2, 1)
    fleet.start(NodeId("pc0"))
    fleet.advance(0.6)
    assert fleet.leaders() == {None}
    fleet.advance(1.0)
    assert fleet.leaders() == {NodeId("pc0")}


@pytest.mark.parametrize("seed", range(20))
def test_linked_pcs_agree_within_three_seconds(seed: int) -> None:
    fleet = Simulator(seed, 4)
    for node in fleet.pcs:
        fleet.start(node)
        fleet.advance(0.1)
    fleet.advance(2.6)
    assert fleet.agreed()


@pytest.mark.parametrize("seed", range(20))
def test_pcs_that_led_themselves_agree_when_they_meet(seed: int) -> None:
    fleet = Simulator(seed, 3)
    for number, node in enumerate(fleet.pcs):
        fleet.partition(list(fleet.pcs)[: number + 1])
        fleet.start(node)
    fleet.cuts = {(a, b) for a in fleet.pcs for b in fleet.pcs if a != b}
    fleet.advance(5.0)
    assert fleet.leaders() == set(fleet.pcs)
    fleet.heal()
    fleet.advance(4.0)
    assert fleet.agreed()


@pytest.mark.parametrize("seed", range(30))
def test_a_pc_between_two_that_cannot_reach_each_other_means_no_endless_election(seed: int) -> None:
    """The partition that everybody forgets: one PC sees both sides."""
    fleet = Simulator(seed, 3)
    left, middle, right = fleet.pcs
    fleet.cut(left, right)
    fleet.cut(right, left)
    for node in (left, middle, right):
        fleet.start(node)
        fleet.advance(0.3)
    fleet.advance(30.0)
    before = len(fleet.elections)
    fleet.advance(60.0)
    assert len(fleet.elections) - before <= 2, fleet.led
    for node in (left, middle, right):
        assert fleet.pcs[node].running.view(fleet.now).leader is not None
    fleet.heal()
    fleet.advance(HEAL_S)
    assert fleet.agreed()


@pytest.mark.parametrize("seed", range(20))
def test_a_leader_that_restarts_at_once_again_and_again(seed: int) -> None:
    """J08: always one leader within 10 s, and epochs only grow."""
    fleet = Simulator(seed, 3)
    for node in fleet.pcs:
        fleet.start(node)
    fleet.advance(5.0)
    for _ in range(20):
        (leader,) = fleet.leaders()
        assert leader is not None
        fleet.kill(leader)
        fleet.advance(fleet.random.random())
        fleet.start(leader)
        fleet.advance(HEAL_S)
        assert fleet.agreed()
    counters = [epoch.counter for _, epoch in fleet.led]
    assert counters == sorted(counters)


@pytest.mark.parametrize("seed", range(20))
def test_a_late_joiner_is_asked_for_its_lease_at_once(seed: int) -> None:
    fleet = Simulator(seed, 4)
    *first, late = fleet.pcs.values()
    for pc in first:
        pc.holds_model = True  # the leader keeps its office
        fleet.start(pc.node)
    fleet.advance(6.0)
    before = len(fleet.elections)
    fleet.start(late.node)
    fleet.advance(1.0)
    assert fleet.agreed()
    assert len(fleet.elections) == before


@pytest.mark.parametrize("loss", [0.02, 0.1])
def test_lost_messages_are_said_again_without_a_new_election(loss: float) -> None:
    """J09."""
    fleet = Simulator(3, 3)
    for node in fleet.pcs:
        fleet.start(node)
    fleet.advance(5.0)
    fleet.loss = loss
    before = len(fleet.elections)
    fleet.advance(60.0)
    assert len(fleet.elections) - before <= 1


def test_a_pc_that_hangs_while_all_start_does_not_stop_the_others() -> None:
    fleet = Simulator(4, 3)
    hanging = NodeId("pc0")
    for node in fleet.pcs:
        fleet.start(node)
    fleet.pause(hanging, 3.0)
    fleet.advance(2.9)
    leaders = {pc.running.view(fleet.now).leader for pc in fleet.up() if pc.node != hanging}
    assert len(leaders) == 1
    assert leaders != {None}
    fleet.advance(HEAL_S)
    assert fleet.agreed()
