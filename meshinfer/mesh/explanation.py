"""A plan, or the lack of one, in words.

The planner's choice enters and its sentence leaves (`why`); a Plan or NoPlan enters and lines for
`meshinfer plan` leave. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from meshinfer.core.fleet import Member, MemberState
from meshinfer.core.ids import NodeId, short
from meshinfer.core.plan import NoPlan, Plan, StagePlan
from meshinfer.core.units import format_bytes
from meshinfer.mesh.partition import Load
from meshinfer.mesh.placement import Placement, total_need
from meshinfer.mesh.rooms import Room, distinct

UNEVEN = 5
"""Percent above the mean from which the slowest stage is told of."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What the planner decided, and between what."""

    rooms: tuple[Room, ...]  # of every PC that could take part, largest first
    placement: Placement
    load: Load
    forced: int | None
    context: tuple[int, int]  # tokens of a sequence: wanted, given
    cache: tuple[int, int]  # tokens of all sequences: wanted, given


def why_chosen(choice: Choice) -> str:
    """One sentence for people."""
    return f"{_placed(choice)}{_lowered(choice)}."


def _placed(choice: Choice) -> str:
    chosen = choice.placement.rooms
    if len(chosen) > 1:
        return f"{_split_reason(choice)}; split over {len(chosen)} PCs, {_balance(choice)}"
    room = chosen[0]
    need = format_bytes(choice.load.need(room, 0, choice.load.units))
    holds = f"{room.member.name} holds the whole model ({need} of its {format_bytes(room.size)})"
    if choice.forced == 1:
        return f"One stage was asked for, and {holds}"
    return holds if len(choice.rooms) == 1 else f"{holds}, so that no token waits for the network"


def _split_reason(choice: Choice) -> str:
    if choice.forced is not None:
        return f"{choice.forced} stages were asked for"
    need = format_bytes(total_need(choice.load, choice.rooms[:1]))
    return f"No PC of {len(choice.rooms)} has {need} for the whole model"


def _balance(choice: Choice) -> str:
    """What was balanced, and how nearly: the slowest stage against the mean of all."""
    times = _times(choice)
    over = round(100 * (max(times) * len(times) / sum(times) - 1)) if any(times) else 0
    speeds = {room.speed for room in choice.placement.rooms}
    measured = " at each PC's speed" if len(speeds) > 1 else ""
    uneven = f" (the slowest stage {over} % above the mean)" if over >= UNEVEN else ""
    return f"balanced by computing time{measured}{uneven}"


def _times(choice: Choice) -> list[float]:
    placement = choice.placement
    return [
        choice.load.time(room, part.first, part.end)
        for room, part in zip(placement.rooms, placement.cut.ranges, strict=True)
    ]


def _lowered(choice: Choice) -> str:
    for what, (wanted, given) in (("context", choice.context), ("cache", choice.cache)):
        if given < wanted:
            return f"; the {what} is lowered from {wanted} to {given} tokens to fit"
    return ""


def explain(outcome: Plan | NoPlan, members: Iterable[Member]) -> list[str]:
    """Lines for `meshinfer plan`: the reason, then one line for every stage and every other PC."""
    known = {member.node: member for member in distinct(members)}
    if isinstance(outcome, NoPlan):
        return _no_plan_lines(outcome, known)
    lines = [
        outcome.why,
        f"{outcome.kind.value}, {outcome.precision}, context {outcome.context_length} tokens, "
        f"cache {outcome.cache_tokens} tokens",
    ]
    for pipeline in outcome.pipelines:
        for number, stage in enumerate(pipeline.stages, start=1):
            lines.append(_stage_line(number, stage, outcome.epoch.leader, known))
    used = {stage.node for pipeline in outcome.pipelines for stage in pipeline.stages}
    lines.extend(_unused_line(member) for node, member in known.items() if node not in used)
    return lines


def _stage_line(number: int, stage: StagePlan, leader: NodeId, known: dict[NodeId, Member]) -> str:
    role = " (leader)" if stage.node == leader else ""
    weights, cache = format_bytes(stage.weight_bytes), format_bytes(stage.cache_bytes)
    return (
        f"{number}. {_name(stage.node, known)}{role} on {stage.device}: layers "
        f"{stage.first_layer} to {stage.last_layer}, {weights} of weights, {cache} of cache"
    )


def _unused_line(member: Member) -> str:
    """Why a PC has no stage."""
    free = format_bytes(member.capacity.memory_free)
    if member.state is not MemberState.ALIVE:
        return f"-  {member.name}: not used, {member.state.value}"
    devices = member.capacity.devices
    if all(device.note for device in devices):
        notes = ", ".join(f"{device.name} {device.note}" for device in devices)
        return f"-  {member.name}: not used, {notes or 'no device'}"
    return f"-  {member.name}: in reserve, {free} free"


def _no_plan_lines(outcome: NoPlan, known: dict[NodeId, Member]) -> list[str]:
    lines = [
        outcome.why,
        f"needed {format_bytes(outcome.needed_bytes)}, "
        f"available {format_bytes(outcome.available_bytes)}",
    ]
    for node, size in outcome.rooms:
        member = known.get(node)
        reason = "" if member is None or size else f" ({_unused_reason(member)})"
        lines.append(f"-  {_name(node, known)}: {format_bytes(size)}{reason}")
    return lines


def _unused_reason(member: Member) -> str:
    if member.state is not MemberState.ALIVE:
        return member.state.value
    notes = ", ".join(
        f"{device.name} {device.note}" for device in member.capacity.devices if device.note
    )
    return notes or "no memory to give"


def _name(node: NodeId, known: dict[NodeId, Member]) -> str:
    return known[node].name if node in known else short(node)
