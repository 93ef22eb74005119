"""Who takes part, and in which order."""

from __future__ import annotations

import math
from itertools import permutations

import pytest

from meshinfer.core.ids import NodeId
from meshinfer.mesh.partition import Load, partition
from meshinfer.mesh.placement import QUICKER, place_split, place_whole, total_need, total_size
from tests.mesh.fleets import room

LEADER = NodeId("b")


def test_the_leader_comes_first_then_the_largest() -> None:
    rooms = [room(100, "a"), room(90, "b"), room(80, "c")]
    placed = place_split(Load.of([10] * 24, [0] * 24), rooms, LEADER)
    assert placed is not None
    assert [one.node for one in placed.rooms] == ["b", "a", "c"]


def test_without_the_leader_the_largest_comes_first() -> None:
    rooms = [room(100, "a"), room(80, "c")]
    placed = place_split(Load.of([10] * 15, [0] * 15), rooms, LEADER)
    assert placed is not None
    assert [one.node for one in placed.rooms] == ["a", "c"]


def test_another_order_is_taken_only_when_it_is_quicker() -> None:
    """A head of 60 has room on the smallest PC, one of 90 only on another."""
    rooms = [room(150, "b"), room(120, "a"), room(60, "c")]
    load = Load.of([10] * 12 + [60], [0] * 13)
    placed = place_split(load, rooms, LEADER)
    assert placed is not None
    assert [one.node for one in placed.rooms] == ["b", "a", "c"]
    heavy = place_split(Load.of([10] * 18 + [90], [0] * 19), rooms, LEADER)
    assert heavy is not None
    assert [one.node for one in heavy.rooms] == ["b", "c", "a"]


@pytest.mark.parametrize(
    ("head", "first"), [(52, "b"), (60, "a")], ids=["4 % slower", "a fifth slower"]
)
def test_the_leader_is_first_unless_another_order_is_clearly_quicker(head: int, first: str) -> None:
    """The head on the quicker PC, the leader, would be best; then the leader stands last."""
    rooms = [room(500, "a", speed=1.0), room(500, "b", speed=1.2)]
    load = Load.of([10] * 5 + [head], [0] * 6)
    placed = place_split(load, rooms, LEADER)
    assert placed is not None
    assert placed.rooms[0].node == first


def test_the_order_is_never_far_from_the_best_of_all() -> None:
    """Four PCs of unlike room and speed: against every order."""
    rooms = [
        room(260, "a", speed=1.0),
        room(220, "b", speed=2.5),
        room(200, "c", speed=0.7),
        room(180, "d", speed=1.6),
    ]
    load = Load.of([90, *[7, 13] * 20, 110], [0] * 42, step_bytes=[0, *[7, 13] * 20, 110])
    placed = place_split(load, rooms, LEADER)
    assert placed is not None
    cuts = [partition(load, order) for order in permutations(rooms)]
    assert placed.cut.time <= QUICKER * min(cut.time for cut in cuts if cut is not None)


def test_beyond_the_limit_the_least_full_cut_is_told() -> None:
    load = Load.of([150, 150, 150], [0] * 3)
    placed = place_split(load, [room(240, "a"), room(240, "b")], LEADER, math.inf)
    assert placed is not None
    assert placed.cut.fullness == 1.25


def test_a_piece_too_big_for_all_is_no_placement() -> None:
    rooms = [room(100, "a"), room(100, "b")]
    assert place_split(Load.of([10, 101, 10], [0] * 3), rooms, LEADER) is None
    assert place_split(Load.of([1], [0]), [], LEADER) is None


def test_whole_on_the_best_of_those_that_hold_it() -> None:
    rooms = [room(100, "a"), room(60, "b"), room(40, "c")]
    placed = place_whole(Load.of([50], [5]), rooms, LEADER)
    assert placed is not None
    assert [one.node for one in placed.rooms] == ["b"]
    assert place_whole(Load.of([101], [0]), rooms, LEADER) is None


def test_a_clearly_faster_pc_serves_alone() -> None:
    load = Load.of([50], [5])
    for speed, node in ((1.05, "b"), (1.5, "a")):
        rooms = [room(100, "a", speed=speed), room(60, "b")]
        placed = place_whole(load, rooms, LEADER)
        assert placed is not None
        assert placed.rooms[0].node == node


def test_sums_use_the_mildest_peak_and_every_process() -> None:
    rooms = [room(100, "a", process=7, peak=2.0), room(90, "b", process=7, peak=1.5)]
    assert total_need(Load.of([10, 10], [1, 2]), rooms) == 7 + 7 + 30 + 3
    assert total_size(rooms) == 190
