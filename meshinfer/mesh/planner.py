"""Who computes what: a model's shape and the fleet enter, a Plan or the reason for none leaves.

Called by the leader's term and by `meshinfer plan`. Pure and deterministic: the plan's id is the
caller's, and the order of the members does not matter. The rules:

- One PC that holds everything serves alone: a split of what fits costs every token a hop.
- Otherwise a pipeline over as few PCs as hold it, the largest first; smaller PCs stay in reserve.
  The slowest stage is made as quick as the rooms allow (what a step reads, over the PC's speed;
  memory is weights at their peak while loading, cache and process).
- The cache is lowered step by step to the given minimum before anything is refused, and says so.
- Exactly `force_stages` stages when that is given.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from meshinfer.core.fleet import Member
from meshinfer.core.ids import Epoch, PlanId
from meshinfer.core.model import ModelShape, UnitRange
from meshinfer.core.plan import DraftPlan, NoPlan, Pipeline, Plan, PlanKind, StagePlan
from meshinfer.mesh.draft_place import NoDraft, draft_line, place_draft
from meshinfer.mesh.explanation import Choice, why_chosen
from meshinfer.mesh.partition import Common, Load
from meshinfer.mesh.placement import Placement, place_split, place_whole
from meshinfer.mesh.rooms import Room, StageCost, rooms_of
from meshinfer.mesh.shortage import Shortage, refusal

LOWERING = 0.75
"""Each step down keeps three quarters of the cache: at most a quarter is given away needlessly."""

BLOCK_TOKENS = 32
"""The largest cache block of the devices (CPU 32, GPU 16): lowered figures are whole blocks."""

_CACHE_SHARE = {"f32": 1, "bf16": 2}
"""Units tell cache bytes at f32; the cache is kept in the precision of the computation."""


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What a plan should look like. Raises ValueError for figures that contradict themselves."""

    precision: str = "f32"  # or "bf16"
    force_stages: int | None = None
    target_cache_tokens: int = 8192  # for all sequences together
    minimum_cache_tokens: int = 1024  # with less the model is refused
    context_limit: int | None = None  # tokens of a sequence, when fewer than the model's are wanted
    cost: StageCost = StageCost()

    def __post_init__(self) -> None:
        if self.precision not in _CACHE_SHARE:
            raise ValueError(f"no stage computes in {self.precision}")
        if not 0 < self.minimum_cache_tokens <= self.target_cache_tokens:
            raise ValueError("the minimum of cache tokens is positive and at most the target")
        if self.force_stages is not None and self.force_stages < 1:
            raise ValueError("a pipeline has at least one stage")
        if self.context_limit is not None and self.context_limit < 1:
            raise ValueError("a context has at least one token")


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """One question to the planner. `epoch.leader` is the PC that will lead the ring."""

    shape: ModelShape
    members: tuple[Member, ...]  # only those that are alive are used
    epoch: Epoch
    plan_id: PlanId
    options: PlanOptions = PlanOptions()
    draft: ModelShape | None = None  # a small model that may guess for it, where there is room


def plan(request: PlanRequest) -> Plan | NoPlan:
    """The plan for this fleet, or why there is none."""
    options = request.options
    rooms = rooms_of(request.members, options.precision, options.cost, request.epoch.leader)
    least = options.minimum_cache_tokens
    for tokens in _cache_levels(options.target_cache_tokens, least):
        load = load_of(request.shape, options.precision, tokens)
        placement = _place(request, load, rooms)
        if placement is not None:
            return _plan_from(request, rooms, placement, tokens)
    load = load_of(request.shape, options.precision, least)
    shortage = Shortage(request.shape.model, least, load, rooms, options.force_stages, options.cost)
    return refusal(shortage, request.members, request.epoch.leader)


def load_of(shape: ModelShape, precision: str, cache_tokens: int) -> Load:
    """Bytes and step cost of every unit with a cache of so many tokens in `precision`."""
    share = _CACHE_SHARE[precision]
    return Load.of(
        [unit.weight_bytes for unit in shape.units],
        [unit.cache_bytes_per_token * cache_tokens // share for unit in shape.units],
        [
            Common(
                one.unit,
                number,
                one.weight_bytes,
                one.cache_bytes_per_token * cache_tokens // share,
            )
            for number, unit in enumerate(shape.units)
            for one in unit.shared
        ],
        [unit.step_bytes for unit in shape.units],
    )


def _cache_levels(target: int, least: int) -> Iterator[int]:
    """From the target down to the least, each once."""
    tokens = target
    while tokens > least:
        yield tokens
        tokens = min(tokens - 1, int(tokens * LOWERING) // BLOCK_TOKENS * BLOCK_TOKENS)
    yield least


def _place(request: PlanRequest, load: Load, rooms: tuple[Room, ...]) -> Placement | None:
    """One PC, else as few as hold it; exactly the forced number when there is one."""
    forced = request.options.force_stages
    leader = request.epoch.leader
    if forced in (None, 1):
        whole = place_whole(load, rooms, leader)
        if whole is not None or forced == 1:
            return whole
    counts = range(2, len(rooms) + 1) if forced is None else range(forced, forced + 1)
    for count in counts:
        if count > len(rooms):
            return None
        placement = place_split(load, rooms[:count], leader)
        if placement is not None:
            return placement
    return None


def _plan_from(
    request: PlanRequest, rooms: tuple[Room, ...], placement: Placement, tokens: int
) -> Plan:
    options, shape = request.options, request.shape
    wanted = _context(request, options.target_cache_tokens)
    choice = Choice(
        rooms=rooms,
        placement=placement,
        load=load_of(shape, options.precision, tokens),
        forced=options.force_stages,
        context=(wanted, _context(request, tokens)),
        cache=(options.target_cache_tokens, tokens),
    )
    stages = tuple(
        _stage(request, room, units, tokens)
        for room, units in zip(placement.rooms, placement.cut.ranges, strict=True)
    )
    draft = None
    if request.draft is not None:
        draft = place_draft(request.draft, rooms, stages, request.epoch.leader)
    return Plan(
        id=request.plan_id,
        epoch=request.epoch,
        model=shape.model,
        kind=PlanKind.SINGLE if len(stages) == 1 else PlanKind.PIPELINE,
        why=why_chosen(choice) + _why_draft(request, draft),
        precision=options.precision,
        context_length=_context(request, tokens),
        cache_tokens=tokens,
        pipelines=(Pipeline(stages),),
        draft=draft if isinstance(draft, DraftPlan) else None,
    )


def _why_draft(request: PlanRequest, draft: DraftPlan | NoDraft | None) -> str:
    if draft is None:
        return ""
    names = {one.node: one.name for one in request.members}
    node = draft.stage.node if isinstance(draft, DraftPlan) else None
    return f" {draft_line(draft, names.get(node, '') if node else '')}"


def _context(request: PlanRequest, tokens: int) -> int:
    """Tokens that a sequence may have when all of them share `tokens`."""
    limit = request.options.context_limit
    longest = min(request.shape.context_length, tokens)
    return longest if limit is None else min(longest, limit)


def _stage(request: PlanRequest, room: Room, units: UnitRange, tokens: int) -> StagePlan:
    shape = request.shape
    first_layer, last_layer = shape.layer_span(units)
    load = load_of(shape, request.options.precision, tokens)
    return StagePlan(
        node=room.node,
        device=room.device,
        units=units,
        first_layer=first_layer,
        last_layer=last_layer,
        weight_bytes=shape.weight_bytes(units),
        cache_bytes=load.cache(units.first, units.end),
        ring_addresses=room.member.ring_addresses,
    )
