"""The cut over a given order of rooms: exact, quick, even, never over a room."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshinfer.core.model import UnitRange
from meshinfer.mesh.partition import Common, Cutter, Load, partition
from tests.mesh.fleets import every_cut, measured, room

SMALL = st.integers(0, 12)


@st.composite
def rows_with_something_in_common(
    draw: st.DrawFn,
) -> tuple[list[tuple[int, int]], list[Common]]:
    """Up to nine units of a few bytes of weights and cache, and which have what in common."""
    units = draw(st.lists(st.tuples(SMALL, SMALL), min_size=1, max_size=9))
    common = []
    if len(units) > 1 and draw(st.booleans()):
        holders = sorted(draw(st.sets(st.integers(0, len(units) - 1), min_size=2)))
        weights = draw(st.integers(0, min(units[one][0] for one in holders)))
        caches = draw(st.integers(0, min(units[one][1] for one in holders)))
        common = [
            Common(before, after, weights, caches)
            for before, after in zip(holders, holders[1:], strict=False)
        ]
    return units, common


@st.composite
def loads(draw: st.DrawFn) -> Load:
    """What a step costs has nothing to do with the bytes, so that ties and conflicts are common."""
    units, common = draw(rows_with_something_in_common())
    steps = draw(st.lists(st.integers(0, 4), min_size=len(units), max_size=len(units)))
    return Load.of([one[0] for one in units], [one[1] for one in units], common, steps)


ROOMS = st.lists(
    st.tuples(st.integers(0, 120), st.sampled_from([0.5, 1.0, 3.0])), min_size=1, max_size=4
)


@given(rows_with_something_in_common())
def test_what_is_in_common_counts_once_in_a_range_that_has_it(
    row: tuple[list[tuple[int, int]], list[Common]],
) -> None:
    units, common = row
    load = Load.of([one[0] for one in units], [one[1] for one in units], common)
    holders = {unit for one in common for unit in (one.first, one.second)}
    for first in range(len(units) + 1):
        for end in range(first, len(units) + 1):
            again = max(0, len([unit for unit in holders if first <= unit < end]) - 1)
            weights = sum(unit[0] for unit in units[first:end])
            caches = sum(unit[1] for unit in units[first:end])
            assert load.weight(first, end) == weights - (again * common[0].weights if common else 0)
            assert load.cache(first, end) == caches - (again * common[0].caches if common else 0)


@given(loads(), ROOMS, st.integers(0, 5), st.sampled_from([1.0, 1.3, 2.0]))
def test_finds_the_best_cut_whenever_brute_force_finds_one(
    load: Load, sizes: list[tuple[int, float]], process: int, peak: float
) -> None:
    rooms = [
        room(size, f"n{index}", process, peak, speed) for index, (size, speed) in enumerate(sizes)
    ]
    cuts = [measured(load, rooms, cut) for cut in every_cut(load, rooms)]
    feasible = [cut for cut in cuts if cut.fullness <= 1.0]
    found = partition(load, rooms)
    if not feasible:
        assert found is None
        return
    assert found is not None
    best = min(feasible)
    mine = measured(load, rooms, found.ranges)
    assert (mine.time, mine.fullness) == (best.time, best.fullness) == (found.time, found.fullness)
    evenest = min(cut.squares for cut in feasible if cut[:2] == best[:2])
    assert abs(mine.squares - evenest) < 1e-9


@given(loads(), ROOMS, st.integers(0, 8))
def test_a_cut_within_a_time_is_found_whenever_there_is_one(
    load: Load, sizes: list[tuple[int, float]], slowest: int
) -> None:
    rooms = [room(size, f"n{index}", speed=speed) for index, (size, speed) in enumerate(sizes)]
    cuts = [measured(load, rooms, cut) for cut in every_cut(load, rooms)]
    found = Cutter(load, rooms).cut(rooms, slowest)
    assert (found is not None) == any(cut.fullness <= 1.0 and cut.time <= slowest for cut in cuts)
    assert found is None or found == partition(load, rooms)


def test_an_embedding_takes_room_but_no_time() -> None:
    """The stage with the head has as much less to compute of the rest."""
    load = Load.of([60, *[10] * 12, 40], [0] * 14, step_bytes=[0, *[10] * 12, 40])
    found = partition(load, [room(200, "a"), room(200, "b")])
    assert found is not None
    assert found.ranges == (UnitRange(0, 9), UnitRange(9, 14))
    assert (found.time, found.fullness) == (80, 0.7)


def test_memory_overrules_time() -> None:
    load = Load.of([60, *[10] * 12, 40], [0] * 14, step_bytes=[0, *[10] * 12, 40])
    found = partition(load, [room(100, "a"), room(200, "b")])
    assert found is not None
    assert found.ranges[0] == UnitRange(0, 5)


def test_twice_the_speed_takes_twice_the_units() -> None:
    rooms = [room(100, "a", speed=2.0), room(100, "b", speed=1.0)]
    found = partition(Load.of([5] * 9, [0] * 9), rooms)
    assert found is not None
    assert found.ranges == (UnitRange(0, 6), UnitRange(6, 9))


def test_at_rest_the_least_full_cut_is_the_best() -> None:
    load = Load.of([60, *[10] * 12, 40], [0] * 14, step_bytes=[0, *[10] * 12, 40]).at_rest()
    found = partition(load, [room(200, "a"), room(200, "b")])
    assert found is not None
    assert found.ranges[0] == UnitRange(0, 6)


def test_equal_rooms_get_equal_parts() -> None:
    load = Load.of([10] * 12, [0] * 12)
    found = partition(load, [room(100, name) for name in "abc"])
    assert found is not None
    assert found.ranges == (UnitRange(0, 4), UnitRange(4, 8), UnitRange(8, 12))


@pytest.mark.parametrize(
    ("units", "ends"),
    [
        ([10] * 8 + [90], (4, 8, 9)),
        ([90] + [10] * 8, (1, 5, 9)),
    ],
    ids=["a big head", "a big embedding"],
)
def test_rooms_that_are_not_the_fullest_are_filled_evenly_too(
    units: list[int], ends: tuple[int, ...]
) -> None:
    """One big unit decides the fullest room; the rest must still be halved."""
    found = partition(Load.of(units, [0] * 9), [room(100, name) for name in "abc"])
    assert found is not None
    assert found.fullness == 0.9
    assert tuple(part.end for part in found.ranges) == ends


def test_cuts_to_half_a_layer_when_memory_says_so() -> None:
    load = Load.of([10] * 6, [0] * 6)
    found = partition(load, [room(30, "a"), room(30, "b")])
    assert found is not None
    assert found.ranges == (UnitRange(0, 3), UnitRange(3, 6))


def test_a_byte_too_much_does_not_fit() -> None:
    """Bytes are compared, not rounded quotients."""
    size = 2**53 - 2  # (size + 1) / size rounds to 1.0
    load = Load.of([size + 1], [0])
    assert load.fullness(room(size), 0, 1) > 1.0
    assert partition(load, [room(size)]) is None
    assert partition(Load.of([size], [0]), [room(size)]) is not None


def test_more_rooms_than_units_is_no_partition() -> None:
    load = Load.of([1, 1], [0, 0])
    assert partition(load, [room(10, name) for name in "abc"]) is None
    assert partition(load, []) is None


def test_cache_process_and_peak_count() -> None:
    load = Load.of([100], [50])
    assert load.need(room(1000, process=7, peak=1.3), 0, 1) == 7 + 130 + 50
