"""The best way to cut a row of units over rooms in a given order.

What units cost and rooms enter, cut positions leave. Exact: among all contiguous cuts that fit,
with at least one unit in each room, the one whose slowest room is quickest; among those, the one
whose fullest room is least full; among those, the one with the smallest sum of squared fullness, so
that the other rooms are evenly filled too. Called by the placement only; pure.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
    steps: tuple[int, ...]  # what a step costs, in bytes of weights to read, likewise
    weights_twice: Twice = ()
    caches_twice: Twice = ()

    @classmethod
    def of(
        cls,
        weight_bytes: Sequence[int],
        cache_bytes: Sequence[int],
        common: Sequence[Common] = (),
        step_bytes: Sequence[int] | None = None,
    ) -> Load:
        """From the bytes of each unit, and what units have in common. Without `step_bytes` a step
        reads all weights of a unit."""
        units = len(weight_bytes)
        return cls(
            _running(weight_bytes),
            _running(cache_bytes),
            _running(weight_bytes if step_bytes is None else step_bytes),
            _twice(units, [(one.first, one.second, one.weights) for one in common]),
            _twice(units, [(one.first, one.second, one.caches) for one in common]),
        )

    @property
    def units(self) -> int:
        return len(self.weights) - 1

    def at_rest(self) -> Load:
        """The same memory with nothing to compute: then fullness alone decides a cut."""
        return replace(self, steps=(0,) * len(self.steps))

    def weight(self, first: int, end: int) -> int:
        """Bytes of weights that units [first, end) hold together."""
        twice = self.weights_twice[first][end - first] if self.weights_twice else 0
        return self.weights[end] - self.weights[first] - twice

    def cache(self, first: int, end: int) -> int:
        """Bytes of cache that units [first, end) hold together."""
        twice = self.caches_twice[first][end - first] if self.caches_twice else 0
        return self.caches[end] - self.caches[first] - twice

    def time(self, room: Room, first: int, end: int) -> float:
        """How long a step computes units [first, end) in `room`: seconds where its speed is bytes a
        second, else in proportion to them."""
        return (self.steps[end] - self.steps[first]) / room.speed

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
    time: float  # of the slowest room
    fullness: float  # of the fullest room; above 1 it does not fit


Cost = Callable[[int, int], float]
"""Of a range (first, end): never less when it grows."""

Starts = list[int]
"""[end]: the furthest that a range which ends there may reach back within the limits; `end` itself
when not even one unit may."""

FIT = 1.0


class Cutter:
    """Cuts one load over rooms in any order. What fits where is looked at once for each room."""

    def __init__(self, load: Load, rooms: Sequence[Room], limit: float = FIT) -> None:
        """`limit` is the fullness that no room may exceed."""
        self._load = load
        limit = min(limit, sys.float_info.max)  # a room of no size is infinitely full: never that
        self._fitting = {
            room.node: _starts(load.units, _cost(load.fullness, room), limit) for room in rooms
        }

    def cut(self, order: Sequence[Room], slowest: float = math.inf) -> Partition | None:
        """The best cut in which no room takes longer than `slowest`, or None when there is none."""
        units = self._load.units
        if not 0 < len(order) <= units:
            return None
        starts = self._within(order, slowest)
        if not _reaches_end(starts, units):
            return None
        times = [_cost(self._load.time, room) for room in order]
        time, _ = _least(times, starts, max)
        starts = self._within(order, time)
        shares = [_cost(self._load.fullness, room) for room in order]
        fullness, _ = _least(shares, starts, max)
        _, ranges = _least(shares, starts, _add_square, fullness)
        return Partition(ranges, time, fullness)

    def _within(self, order: Sequence[Room], slowest: float) -> list[Starts]:
        """Where ranges may start in each room, by memory and by time."""
        fitting = [self._fitting[room.node] for room in order]
        if math.isinf(slowest):
            return fitting
        speeds = {room.speed: room for room in order}
        quick = {
            speed: _starts(self._load.units, _cost(self._load.time, room), slowest)
            for speed, room in speeds.items()
        }
        return [
            list(map(max, by_memory, quick[room.speed]))
            for by_memory, room in zip(fitting, order, strict=True)
        ]


def partition(load: Load, rooms: Sequence[Room], limit: float = FIT) -> Partition | None:
    """The best cut with no room fuller than `limit`, or None when there is none."""
    return Cutter(load, rooms, limit).cut(rooms)


def _cost(measure: Callable[[Room, int, int], float], room: Room) -> Cost:
    return lambda first, end: measure(room, first, end)


def _starts(units: int, cost: Cost, limit: float) -> Starts:
    """Both ends of the longest range only move to the right, so each unit is looked at twice."""
    starts = [0]
    first = 0
    for end in range(1, units + 1):
        while first < end and cost(first, end) > limit:
            first += 1
        starts.append(first)
    return starts


def _reaches_end(starts: Sequence[Starts], units: int) -> bool:
    """Whether any cut keeps the limits: ten times cheaper than the best one, and mostly enough."""
    reached = [True] + [False] * units
    for row in starts:
        after = [False]
        last = -1  # the last place before `end` where a range may begin
        for end in range(1, units + 1):
            if reached[end - 1]:
                last = end - 1
            after.append(last >= row[end])
        reached = after
    return reached[units]


def _add_square(total: float, fullness: float) -> float:
    return total + fullness * fullness


def _least(
    costs: Sequence[Cost],
    starts: Sequence[Starts],
    combine: Callable[[float, float], float],
    limit: float = math.inf,
) -> tuple[float, tuple[UnitRange, ...]]:
    """Dynamic programming over (rooms used, units placed) for a cost that `combine` accumulates.

    Some cut must keep the limits: `starts`, and `limit` for each room's own cost. The least cost
    and its ranges.
    """
    units = len(starts[0]) - 1
    best = [0.0] + [math.inf] * units
    cuts: list[list[int]] = []
    for used, cost in enumerate(costs):
        last_end = units - (len(costs) - used - 1)
        best, row = _place(cost, starts[used][: last_end + 1], best, (limit, combine))
        cuts.append(row)
    assert not math.isinf(best[units])
    ends = [units]
    for row in reversed(cuts):
        ends.append(row[ends[-1]])
    ranges = tuple(UnitRange(first, end) for first, end in pairwise(reversed(ends)))
    return best[units], ranges


def _place(
    cost: Cost,
    starts: Starts,
    before: list[float],
    rule: tuple[float, Callable[[float, float], float]],
) -> tuple[list[float], list[int]]:
    """One more room: least cost to place the first `end` units, and where its range begins.

    A range that grows to the left only costs more, so each search stops at the limits, or where
    this room alone costs as much as the best place found.
    """
    limit, combine = rule
    after = [math.inf] * len(before)
    begins = [0] * len(before)
    for end, start in enumerate(starts):
        least, begin = math.inf, 0
        for first in range(end - 1, start - 1, -1):
            own = cost(first, end)
            if own > limit or combine(0.0, own) >= least:
                break
            total = combine(before[first], own)
            if total < least:
                least, begin = total, first
        after[end], begins[end] = least, begin
    return after, begins
