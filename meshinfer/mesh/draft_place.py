"""Where a draft model goes: whole, on a PC that has room left once the large model is placed.

Rooms and the large model's stages enter, a place or the reason for none leaves. Pure. Best is a PC
without a stage, whose processor has nothing else to do, and of these the leader's, as guesses
travel to the leader; then the leader's with its stage, then the one with most room left. Nothing is
taken from the large model: its stages are not looked at again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshinfer.core.ids import NodeId
from meshinfer.core.model import ModelShape, UnitRange
from meshinfer.core.plan import DraftPlan, StagePlan
from meshinfer.core.units import format_bytes
from meshinfer.mesh.rooms import Room

DRAFT_CACHE_TOKENS = 4096
"""Of all sequences together."""


@dataclass(frozen=True, slots=True)
class NoDraft:
    """Why no PC gets the draft model."""

    why: str  # a part of a sentence


def place_draft(
    shape: ModelShape,
    rooms: Sequence[Room],
    stages: Sequence[StagePlan],
    leader: NodeId,
    cache_tokens: int = DRAFT_CACHE_TOKENS,
) -> DraftPlan | NoDraft:
    """The draft `shape` beside `stages`, computed in f32 whatever they are."""
    whole = UnitRange(0, len(shape.units))
    weights = shape.weight_bytes(whole)
    cache = shape.cache_bytes_per_token(whole) * cache_tokens
    left = {room.node: room.size - _taken(room, stages) for room in rooms}
    fitting = [room for room in rooms if room.need(weights, cache) <= left[room.node]]
    if not fitting:
        return NoDraft(_no_room(shape, rooms, left, (weights, cache)))
    with_stage = {stage.node for stage in stages}
    best = min(
        fitting,
        key=lambda room: (
            room.node in with_stage,
            room.node != leader,
            -left[room.node],
            room.node,
        ),
    )
    first_layer, last_layer = shape.layer_span(whole)
    stage = StagePlan(
        node=best.node,
        device=best.device,
        units=whole,
        first_layer=first_layer,
        last_layer=last_layer,
        weight_bytes=weights,
        cache_bytes=cache,
        ring_addresses=(),  # nobody dials it: it dials the leader
    )
    return DraftPlan(
        shape.model,
        stage,
        shape.vocabulary_size,
        min(shape.context_length, cache_tokens),
        cache_tokens,
    )


def draft_line(draft: DraftPlan | NoDraft, name: str) -> str:
    """A sentence for people; `name` is that of the draft's PC."""
    if isinstance(draft, NoDraft):
        return f"No draft model: {draft.why}."
    return f"{draft.model} drafts on {name} ({format_bytes(draft.stage.memory_bytes)})."


def _taken(room: Room, stages: Sequence[StagePlan]) -> int:
    """Bytes that the large model takes of a room, at the peak of loading."""
    return sum(
        room.need(stage.weight_bytes, stage.cache_bytes)
        for stage in stages
        if stage.node == room.node
    )


def _no_room(
    shape: ModelShape, rooms: Sequence[Room], left: dict[NodeId, int], size: tuple[int, int]
) -> str:
    if not rooms:
        return f"no PC has a device for {shape.model}"
    nearest = min(rooms, key=lambda room: (room.need(*size) - left[room.node], room.node))
    return (
        f"{shape.model} takes {format_bytes(nearest.need(*size))}, and "
        f"{nearest.member.name} has {format_bytes(max(0, left[nearest.node]))} left"
    )
