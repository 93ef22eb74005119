"""Why a model cannot be placed, in a sentence and in figures.

What the planner tried enters, a NoPlan leaves. Called by the planner only; pure. The figures are
those of the smallest plan that would do (the minimum of cache). Where memory is what lacks,
`needed_bytes` is above `available_bytes`; where only PCs lack (a forced count) it may be below, and
the sentence tells the reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from meshinfer.core.fleet import Member, MemberState
from meshinfer.core.ids import ModelId, NodeId
from meshinfer.core.plan import NoPlan
from meshinfer.core.units import format_bytes
from meshinfer.mesh.partition import Load
from meshinfer.mesh.placement import place_split, total_need, total_size
from meshinfer.mesh.rooms import Room, StageCost, distinct

LISTED_PCS = 6
"""A sentence with more rooms than this is not read; `rooms` holds all of them."""


@dataclass(frozen=True, slots=True)
class Shortage:
    """What could not be placed: the load with the minimum of cache, on these rooms."""

    model: ModelId
    cache_tokens: int
    load: Load
    rooms: tuple[Room, ...]  # largest first
    forced: int | None
    cost: StageCost

    @property
    def useful(self) -> tuple[Room, ...]:
        """Rooms that hold more than a stage's process, as many as the plan may use."""
        useful = tuple(room for room in self.rooms if room.weight_capacity > 0)
        count = self.load.units if self.forced is None else self.forced
        return useful[:count]


def refusal(shortage: Shortage, members: Iterable[Member], leader: NodeId) -> NoPlan:
    """The NoPlan: `rooms` has every PC, with 0 for one that cannot take part."""
    members = distinct(members)
    sizes = {room.node: room.size for room in shortage.rooms}
    why, needed, available = _reason(shortage, members, leader)
    rooms = tuple((member.node, sizes.get(member.node, 0)) for member in members)
    return NoPlan(why=why, needed_bytes=needed, available_bytes=available, rooms=rooms)


def _reason(
    shortage: Shortage, members: tuple[Member, ...], leader: NodeId
) -> tuple[str, int, int]:
    """(sentence, needed, available)."""
    if not shortage.rooms:
        return _no_device(shortage, members)
    available = total_size(shortage.rooms)
    forced = shortage.forced
    if forced is not None and forced > len(shortage.rooms):
        needed = _alone(shortage) + (forced - 1) * shortage.rooms[0].process_bytes
        return _too_few(shortage, forced), needed, available
    if forced is not None and forced > shortage.load.units:
        units = shortage.load.units
        return (
            f"{forced} stages were asked for, but {shortage.model} has only {units} parts.",
            _alone(shortage),
            available,
        )
    useful = shortage.useful
    if len(useful) < (forced or 1):
        return _too_small(shortage)
    needed, available = total_need(shortage.load, useful), total_size(useful)
    if needed > available:
        return _too_much(shortage, needed, available), needed, available
    return _too_coarse(shortage, leader)


def _alone(shortage: Shortage) -> int:
    return total_need(shortage.load, shortage.rooms[:1])


def _no_device(shortage: Shortage, members: tuple[Member, ...]) -> tuple[str, int, int]:
    load = shortage.load
    needed = load.weight(0, load.units) + load.cache(0, load.units) + shortage.cost.process_bytes
    alive = [member for member in members if member.state is MemberState.ALIVE]
    notes = [f"{one.name}: {_held_back(one)}" for one in alive[:LISTED_PCS]]
    told = f" ({'; '.join(notes)})" if notes else ""
    return f"No PC of the fleet has a device that could compute a stage{told}.", needed, 0


def _held_back(member: Member) -> str:
    notes = [f"{device.name} {device.note}" for device in member.capacity.devices if device.note]
    return ", ".join(notes) or "no device computes in this precision"


def _too_few(shortage: Shortage, forced: int) -> str:
    count = len(shortage.rooms)
    have = "only 1 PC" if count == 1 else f"only {count} PCs"
    return f"{forced} stages on {forced} PCs were asked for, but {have} can take one."


def _too_small(shortage: Shortage) -> tuple[str, int, int]:
    """Too few PCs have room for more than the process of a stage."""
    forced = shortage.forced or 1
    smallest = shortage.rooms[forced - 1]
    needed = sum(room.process_bytes for room in shortage.rooms[: forced - 1]) + _alone(shortage)
    why = (
        f"{smallest.member.name} gives {format_bytes(smallest.size)}, and a stage takes more than "
        f"{format_bytes(smallest.process_bytes)} before it holds any weights; {_listed(shortage)}."
    )
    return why, needed, total_size(shortage.useful)


def _too_much(shortage: Shortage, needed: int, available: int) -> str:
    count = len(shortage.useful)
    where = "one PC" if count == 1 else f"{count} PCs"
    return (
        f"{shortage.model} needs {format_bytes(needed)} on {where} (weights while they load, "
        f"cache for {shortage.cache_tokens} tokens, a process each), but they give "
        f"{format_bytes(available)}: {_listed(shortage)}."
    )


def _too_coarse(shortage: Shortage, leader: NodeId) -> tuple[str, int, int]:
    """Enough in sum, but the pieces do not divide so: tell by how much the rooms are too small."""
    useful = shortage.useful
    available = total_size(useful)
    tightest = place_split(shortage.load, useful, leader, math.inf)
    if tightest is None:  # more PCs than pieces: the largest piece decides
        needed, available = _largest_piece(shortage), useful[0].size
        factor = needed / available
    else:
        factor = tightest.cut.fullness
        needed = max(available + 1, math.ceil(available * factor))
    why = (
        f"{shortage.model} would fit in sum but not piece by piece: the rooms would have to be "
        f"{max(factor, 1.01):.2f} times as large; {_listed(shortage)}."
    )
    return why, needed, available


def _largest_piece(shortage: Shortage) -> int:
    load, room = shortage.load, shortage.useful[0]
    return max(load.need(room, unit, unit + 1) for unit in range(load.units))


def _listed(shortage: Shortage) -> str:
    rooms = shortage.rooms[:LISTED_PCS]
    told = ", ".join(f"{room.member.name} {format_bytes(room.size)}" for room in rooms)
    more = len(shortage.rooms) - len(rooms)
    return f"{told} and {more} more" if more else told
