"""Which PCs take part, and in which order.

A load, rooms and the leader enter, an ordered set of rooms with its cut leaves. Called by the
planner only; pure. The order follows a rule instead of trying all n! of them:

1. the leader first when it takes part (the ring's first hop then stays on its PC), the others by
   the weights they hold, largest first;
2. the same with each of the others moved to the end, where the head (often the biggest unit) goes;
3. when none of these fits: the same two with the largest room first instead of the leader.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from meshinfer.core.ids import NodeId
from meshinfer.mesh.partition import Load, Partition, partition
from meshinfer.mesh.rooms import Room

CLOSE_TO_EVEN = 1.05
"""A cut whose fullest room is within 5 % of what a perfectly even cut gives ends the search."""


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
    """The best single PC that holds everything: most cores, then the leader, then most room.

    Decoding is bound by memory bandwidth, which nobody reports; cores are the nearest figure.
    """
    fitting = [room for room in rooms if load.need(room, 0, load.units) <= room.size]
    if not fitting:
        return None
    best = min(
        fitting,
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
    load: Load, rooms: Sequence[Room], leader: NodeId, limit: float = 1.0
) -> Placement | None:
    """The best cut over all of `rooms` (largest first) among the orders of the rule above."""
    if not rooms or total_need(load, rooms) > limit * total_size(rooms):
        return None
    if not _every_unit_fits(load, rooms, limit):
        return None
    for first in _first_rooms(rooms, leader):
        found = _best_order(load, _orders(rooms, first), limit)
        if found is not None:
            return found
    return None


def _every_unit_fits(load: Load, rooms: Sequence[Room], limit: float) -> bool:
    """A piece too big for every room is told apart before any order is tried."""
    return all(
        any(load.fullness(room, unit, unit + 1) <= limit for room in rooms)
        for unit in range(load.units)
    )


def _first_rooms(rooms: Sequence[Room], leader: NodeId) -> Iterator[Room]:
    """Who may hold the embedding, in order of preference."""
    leading = next((room for room in rooms if room.node == leader), None)
    if leading is not None:
        yield leading
    if leading is not rooms[0]:
        yield rooms[0]


def _orders(rooms: Sequence[Room], first: Room) -> Iterator[tuple[Room, ...]]:
    """`first`, then the others largest first; then the same with another one at the end."""
    others = [room for room in rooms if room is not first]
    yield (first, *others)
    tried = {(room.size, room.peak_factor) for room in others[-1:]}
    for last in reversed(others):
        kind = (last.size, last.peak_factor)
        if kind not in tried:
            tried.add(kind)
            yield (first, *(room for room in others if room is not last), last)


def _best_order(load: Load, orders: Iterator[tuple[Room, ...]], limit: float) -> Placement | None:
    best: Placement | None = None
    for order in orders:
        cut = partition(load, order, limit if best is None else best.cut.fullness)
        if cut is None or (best is not None and cut.fullness >= best.cut.fullness):
            continue
        best = Placement(order, cut)
        if cut.fullness * total_size(order) <= CLOSE_TO_EVEN * total_need(load, order):
            break
    return best
