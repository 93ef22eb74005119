"""Which PCs take part, and in which order.

A load, rooms and the leader enter, an ordered set of rooms with its cut leaves. Called by the
planner only; pure. Among the orders that fit, the one whose slowest stage is quickest; but the
leader comes first (the ring's first hop then stays on its PC) unless another order is more than 5 %
quicker. Beyond four PCs a rule stands for trying all n! orders:

1. the leader first when it takes part, the others by the weights they hold, largest first;
2. the same with each of the others moved to the end, where the head (often the biggest unit) goes;
3. the same two with the largest room first, and with the quickest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations

from meshinfer.core.ids import NodeId
from meshinfer.mesh.partition import FIT, Cutter, Load, Partition, partition
from meshinfer.mesh.rooms import Room

QUICKER = 1.05
"""By how much another first PC must win over the leader: less is within the error of the speeds."""

AS_FAST = 0.9
"""A PC within 10 % of the fastest is as good as that: measured speeds vary by so much."""

TRIED_ROOMS = 4
"""Up to so many rooms every order is tried: 24 of them."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Rooms in the order of the layers; `rooms[i]` takes `cut.ranges[i]`."""

    rooms: tuple[Room, ...]
    cut: Partition


def total_need(load: Load, rooms: Sequence[Room]) -> int:
    """Bytes that the whole model takes on these rooms, with the mildest of their peaks."""
    mildest = min(rooms, key=lambda room: room.peak_factor)
    processes = sum(room.process_bytes for room in rooms)
    return processes - mildest.process_bytes + load.need(mildest, 0, load.units)


def total_size(rooms: Sequence[Room]) -> int:
    """Bytes that these rooms have together."""
    return sum(room.size for room in rooms)


def place_whole(load: Load, rooms: Sequence[Room], leader: NodeId) -> Placement | None:
    """The best single PC that holds everything: the fastest, then most cores, then the leader, then
    most room.

    Decoding is bound by memory bandwidth; where nobody has measured it, cores are the nearest
    figure.
    """
    fitting = [room for room in rooms if load.need(room, 0, load.units) <= room.size]
    if not fitting:
        return None
    fastest = max(room.speed for room in fitting)
    best = min(
        (room for room in fitting if room.speed >= AS_FAST * fastest),
        key=lambda room: (
            -room.member.capacity.cores,
            room.node != leader,
            -room.weight_capacity,
            room.node,
        ),
    )
    cut = partition(load, (best,))
    assert cut is not None
    return Placement((best,), cut)


def place_split(
    load: Load, rooms: Sequence[Room], leader: NodeId, limit: float = FIT
) -> Placement | None:
    """The best cut over all of `rooms` (largest first) among the orders of the rule above.

    With a `limit` of fullness above 1 it tells how far they are from fitting: then it is the least
    full cut, whatever its time.
    """
    if not rooms or total_need(load, rooms) > limit * total_size(rooms):
        return None
    if not _every_unit_fits(load, rooms, limit):
        return None
    if limit > FIT:
        return _least_full(load, rooms, leader, limit)
    cutter, ideal = Cutter(load, rooms), _ideal_time(load, rooms)
    best: Placement | None = None
    for first in _first_rooms(rooms, leader):
        margin = 1.0 if best is None else QUICKER
        for order in _orders(rooms, first):
            if best is not None and best.cut.time <= QUICKER * ideal:
                return best
            cut = cutter.cut(order, _below(best, margin))
            if cut is not None:
                best, margin = Placement(order, cut), 1.0
    return best


def _below(best: Placement | None, margin: float) -> float:
    """The longest time that beats `best` by more than `margin`."""
    return math.inf if best is None else math.nextafter(best.cut.time / margin, 0.0)


def _least_full(
    load: Load, rooms: Sequence[Room], leader: NodeId, limit: float
) -> Placement | None:
    best: Placement | None = None
    for first in _first_rooms(rooms, leader):
        for order in _orders(rooms, first):
            cut = partition(load.at_rest(), order, limit if best is None else best.cut.fullness)
            if cut is not None and (best is None or cut.fullness < best.cut.fullness):
                best = Placement(order, cut)
        if best is not None:
            return best
    return None


def _ideal_time(load: Load, rooms: Sequence[Room]) -> float:
    """No cut has a quicker slowest room: an even share, or the biggest unit on the fastest PC."""
    speeds = [room.speed for room in rooms]
    biggest = max(end - first for first, end in pairwise(load.steps))
    return max(load.steps[-1] / sum(speeds), biggest / max(speeds))


def _every_unit_fits(load: Load, rooms: Sequence[Room], limit: float) -> bool:
    """A piece too big for every room is told apart before any order is tried."""
    return all(
        any(load.fullness(room, unit, unit + 1) <= limit for room in rooms)
        for unit in range(load.units)
    )


def _first_rooms(rooms: Sequence[Room], leader: NodeId) -> Iterator[Room]:
    """Who may hold the embedding, in order of preference, each once."""
    leading = [room for room in rooms if room.node == leader]
    quickest = max(rooms, key=lambda room: room.speed)
    others = rooms if len(rooms) <= TRIED_ROOMS else (rooms[0], quickest)
    yield from {room.node: room for room in (*leading, *others)}.values()


def _orders(rooms: Sequence[Room], first: Room) -> Iterator[tuple[Room, ...]]:
    """`first`, then the others largest first; then the same with another one at the end, or all
    orders of few."""
    others = [room for room in rooms if room is not first]
    if len(rooms) <= TRIED_ROOMS:
        yield from ((first, *order) for order in permutations(others))
        return
    yield (first, *others)
    tried = {_kind(room) for room in others[-1:]}
    for last in reversed(others):
        if _kind(last) not in tried:
            tried.add(_kind(last))
            yield (first, *(room for room in others if room is not last), last)


def _kind(room: Room) -> tuple[int, float, float]:
    """Rooms of one kind need not be tried in each other's place."""
    return room.size, room.peak_factor, room.speed
