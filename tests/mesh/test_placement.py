"""Who takes part, and in which order."""

from __future__ import annotations

from meshinfer.core.ids import NodeId
from meshinfer.mesh.partition import Load
from meshinfer.mesh.placement import place_split, place_whole, total_need, total_size
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


def test_another_order_is_taken_only_when_it_fills_more_evenly() -> None:
    """Head of 70: last on the room of 80 it fills 0.875; on the room of 100 0.7."""
    rooms = [room(100, "b"), room(100, "a"), room(80, "c")]
    placed = place_split(Load.of([10] * 9 + [70], [0] * 10), rooms, LEADER)
    assert placed is not None
    assert [one.node for one in placed.rooms] == ["b", "c", "a"]
    assert placed.cut.fullness == 0.7


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


def test_sums_use_the_mildest_peak_and_every_process() -> None:
    rooms = [room(100, "a", process=7, peak=2.0), room(90, "b", process=7, peak=1.5)]
    assert total_need(Load.of([10, 10], [1, 2]), rooms) == 7 + 7 + 30 + 3
    assert total_size(rooms) == 190
