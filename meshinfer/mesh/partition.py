"""The best way to cut a row of units over rooms in a given order.

Unit weights, cache bytes and rooms enter, cut positions leave. Exact: among all contiguous cuts
with at least one unit in each room, the one whose fullest room is least full; among those, the one
with the smallest sum of squares, so that the other rooms are evenly filled too. Called by the
placement only; pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from meshinfer.core.model import UnitRange
from meshinfer.mesh.rooms import Room


@dataclass(frozen=True, slots=True)
class Common:
    """Bytes that two units both count, and that a range with both of them holds once."""

    first: int  # unit
    second: int  # a later one
    weights: int
    caches: int


Twice = tuple[tuple[int, ...], ...]
"""[first][end - first]: bytes that the units [first, end) count too often."""


@dataclass(frozen=True, slots=True)
class Load:
    """Running sums over a model's units, so that any range costs two subtractions, and one more
    where units have something in common."""

    weights: tuple[int, ...]  # bytes of the first i units, i = 0 .. units
    caches: tuple[int, ...]  # bytes of cache for all tokens, likewise
    weights_twice: Twice = ()
    caches_twice: Twice = ()

    @classmethod
    def of(
        cls,
        weight_bytes: Sequence[int],
        cache_bytes: Sequence[int],
        common: Sequence[Common] = (),
    ) -> Load:
        """From the bytes of each unit, and what units have in common."""
        units = len(weight_bytes)
        return cls(
            _running(weight_bytes),
            _running(cache_bytes),
            _twice(units, [(one.first, one.second, one.weights) for one in common]),
            _twice(units, [(one.first, one.second, one.caches) for one in common]),
        )

    @property
    def units(self) -> int:
        return len(self.weights) - 1

    def weight(self, first: int, end: int) -> int:
        """Bytes of weights that units [first, end) hold together."""
        twice = self.weights_twice[first][end - first] if self.weights_twice else 0
        return self.weights[end] - self.weights[first] - twice

    def cache(self, first: int, end: int) -> int:
        """Bytes of cache that units [first, end) hold together."""
        twice = self.caches_twice[first][end - first] if self.caches_twice else 0
        return self.caches[end] - self.caches[first] - twice

    def need(self, room: Room, first: int, end: int) -> int:
        """Bytes that units [first, end) take in `room` at their peak."""
        return room.need(self.weight(first, end), self.cache(first, end))

    def fullness(self, room: Room, first: int, end: int) -> float:
        """Need over room; at most 1 when it fits, exactly because the bytes are compared."""
        need = self.need(room, first, end)
        if need <= room.size:
            return need / room.size if room.size else 0.0
        return max(need / room.size, math.nextafter(1.0, 2.0)) if room.size else math.inf


def _running(values: Sequence[int]) -> tuple[int, ...]:
    return tuple(accumulate(values, initial=0))


def _twice(units: int, common: Sequence[tuple[int, int, int]]) -> Twice:
    """From (first, second, bytes); empty when nothing is in common."""
    if not any(size for _, _, size in common):
        return ()
    rows: list[tuple[int, ...]] = [(0,)]  # of the empty range at the end
    for first in range(units - 1, -1, -1):
        added = [0] * (units + 1)
        for one, second, size in common:
            if one == first:
                added[second + 1] += size
        shorter = (0, *rows[-1])  # the same ends, without this unit
        sums = accumulate(added[first:])
        rows.append(tuple(old + new for old, new in zip(shorter, sums, strict=True)))
    return tuple(reversed(rows))


@dataclass(frozen=True, slots=True)
class Partition:
    """Ranges in the order of the rooms."""

    ranges: tuple[UnitRange, ...]
    fullness: float  # of the fullest room; above 1 it does not fit


def partition(load: Load, rooms: Sequence[Room], limit: float = 1.0) -> Partition | None:
    """The best cut with no room fuller than `limit`, or None when there is none."""
    if not 0 < len(rooms) <= load.units or not _has_any(load, rooms, limit):
        return None
    fullest = _least(load, rooms, limit, max)
    if fullest is None:
        return None
    evenest = _least(load, rooms, fullest.fullness, _add_square)
    assert evenest is not None  # the first answer qualifies
    return Partition(evenest.ranges, fullest.fullness)


def _has_any(load: Load, rooms: Sequence[Room], limit: float) -> bool:
    """Whether any cut keeps the limit: ten times cheaper than the best one, and mostly enough."""
    head = load.units - 1
    if load.fullness(rooms[-1], head, load.units) > limit:
        return False
    reached = [True] + [False] * load.units
    for room in rooms:
        reached = _reach(load, room, reached, limit)
    return reached[load.units]


def _reach(load: Load, room: Room, reached: list[bool], limit: float) -> list[bool]:
    """Where ranges in `room` may end when they begin where `reached` says.

    Both ends of the longest range only move to the right, so each unit is looked at twice.
    """
    after = [False] * len(reached)
    end = marked = 0
    for first in range(load.units):
        if not reached[first]:
            continue
        end = max(end, first)
        while end < load.units and load.fullness(room, first, end + 1) <= limit:
            end += 1
        for place in range(max(first, marked) + 1, end + 1):
            after[place] = True
        marked = max(marked, end)
    return after


def _add_square(total: float, fullness: float) -> float:
    return total + fullness * fullness


def _least(
    load: Load, rooms: Sequence[Room], limit: float, combine: Callable[[float, float], float]
) -> Partition | None:
    """Dynamic programming over (rooms used, units placed) for a cost that `combine` accumulates.

    `Partition.fullness` of the answer holds that cost.
    """
    best = [0.0] + [math.inf] * load.units
    cuts: list[list[int]] = []
    for used, room in enumerate(rooms):
        left = len(rooms) - used - 1
        best, row = _place(load, room, best, (limit, combine), load.units - left)
        cuts.append(row)
    if math.isinf(best[load.units]):
        return None
    ends = [load.units]
    for row in reversed(cuts):
        ends.append(row[ends[-1]])
    ranges = tuple(UnitRange(first, end) for first, end in pairwise(reversed(ends)))
    return Partition(ranges, best[load.units])


def _place(
    load: Load,
    room: Room,
    before: list[float],
    rule: tuple[float, Callable[[float, float], float]],
    last_end: int,
) -> tuple[list[float], list[int]]:
    """One more room: least cost to place the first `end` units, and where its range begins.

    A range that grows to the left only gets fuller, so each search stops at the limit, or where
    this room alone costs as much as the best place found.
    """
    limit, combine = rule
    after = [math.inf] * len(before)
    begins = [0] * len(before)
    for end in range(1, last_end + 1):
        for first in range(end - 1, -1, -1):
            fullness = load.fullness(room, first, end)
            if fullness > limit or combine(0.0, fullness) >= after[end]:
                break
            cost = combine(before[first], fullness)
            if cost < after[end]:
                after[end], begins[end] = cost, first
    return after, begins
