"""Plans: what fits is not split, what does not fit is split over few PCs, nothing is overfilled."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshinfer.core.fleet import MemberState
from meshinfer.core.model import ModelShape, SharedBytes, UnitKind
from meshinfer.core.plan import NoPlan, Plan, PlanKind
from meshinfer.mesh.planner import PlanOptions, PlanRequest, load_of, plan
from meshinfer.mesh.rooms import StageCost, room_of
from tests.mesh.fleets import (
    FREE_OF_CHARGE,
    GB,
    MB,
    cpu,
    member,
    members,
    request,
    shape,
    stages,
)


def options(
    force: int | None = None, target: int = 64, least: int = 32, cost: StageCost = FREE_OF_CHARGE
) -> PlanOptions:
    return PlanOptions(
        force_stages=force, target_cache_tokens=target, minimum_cache_tokens=least, cost=cost
    )


def check_stages(asked: PlanRequest, made: Plan) -> None:
    """Every unit once, in order, on distinct PCs that are alive, and none overfilled (P01)."""
    parts = stages(made)
    assert parts[0].units.first == 0
    assert parts[-1].units.end == len(asked.shape.units)
    for before, after in zip(parts, parts[1:], strict=False):
        assert before.units.end == after.units.first
    assert len({part.node for part in parts}) == len(parts)
    known = {one.node: one for one in asked.members}
    load = load_of(asked.shape, asked.options.precision, made.cache_tokens)
    for part in parts:
        room = room_of(known[part.node], asked.options.precision, asked.options.cost)
        assert room is not None
        need = load.need(room, part.units.first, part.units.end)
        assert need <= room.size
        assert need == room.need(part.weight_bytes, part.cache_bytes)
        assert part.ring_addresses == known[part.node].ring_addresses
        assert (part.first_layer, part.last_layer) == asked.shape.layer_span(part.units)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    layers=st.integers(1, 128),
    rooms=st.lists(st.integers(0, 2 * GB), min_size=1, max_size=16),
    ends=st.tuples(st.integers(0, 300 * MB), st.integers(0, 300 * MB)),
    cache=st.integers(0, 20_000),
    force=st.none() | st.integers(1, 16),
    backwards=st.booleans(),
)
def test_any_plan_covers_every_layer_once_and_overfills_nobody(
    layers: int,
    rooms: list[int],
    ends: tuple[int, int],
    cache: int,
    force: int | None,
    backwards: bool,
) -> None:
    fleet = members(*rooms)
    model = shape(layers, 10 * MB, ends[0], ends[1], cache)
    asked = request(model, fleet, options(force, 4096, 512, StageCost()))
    made = plan(asked)
    shuffled = fleet[::-1] if backwards else fleet[1:] + fleet[:1]
    assert plan(replace(asked, members=shuffled)) == made
    if isinstance(made, NoPlan):
        assert made.rooms == tuple((one.node, one.capacity.memory_free) for one in fleet)
        return
    check_stages(asked, made)
    assert force is None or len(stages(made)) == force
    assert 512 <= made.cache_tokens <= 4096


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(layers=st.integers(1, 128), count=st.integers(1, 16))
def test_layers_on_equal_pcs_are_shared_evenly(layers: int, count: int) -> None:
    """mlx-lm 1688: 10 layers on 3 ranks lost two; 60 on 31 left the last rank with none (P01)."""
    fleet = members(*[10 * GB] * count)
    asked = request(shape(layers), fleet, options(force=count))
    made = plan(asked)
    if count > 2 * layers + 2:
        assert isinstance(made, NoPlan)
        return
    assert isinstance(made, Plan)
    check_stages(asked, made)
    steps = load_of(asked.shape, "f32", 64).steps
    times = [steps[part.units.end] - steps[part.units.first] for part in stages(made)]
    biggest = max(unit.step_bytes for unit in asked.shape.units)
    assert max(times) < steps[-1] / count + biggest


@pytest.mark.parametrize("count", [1, 2, 3, 5, 7])
def test_any_number_of_pcs_works(count: int) -> None:
    """P13: not only powers of two."""
    fleet = members(*[100 * MB] * count)
    model = shape(9 * count + (0 if count > 1 else -1), 10 * MB)
    made = plan(request(model, fleet))
    assert len(stages(made)) == count


def test_what_fits_on_one_pc_is_not_split() -> None:
    """F01: splitting would only add a hop."""
    made = plan(request(shape(40), members(GB, GB, GB)))
    assert isinstance(made, Plan)
    assert made.kind is PlanKind.SINGLE
    assert [part.node for part in stages(made)] == ["a"]
    assert "pc-a holds the whole model (400 MB of its 1 GB)" in made.why
    assert made.why.endswith("so that no token waits for the network.")


@pytest.mark.parametrize(
    ("free", "leader", "node", "why"),
    [
        ((900, 100), "b", "b", "toy drafts on pc-b (10 MB)."),
        ((900, 5), "b", "a", "toy drafts on pc-a (10 MB)."),
        ((405, 9), "a", None, "No draft model: toy takes 10 MB, and pc-b has 9 MB left."),
        ((300, 300, 15), "a", "c", "toy drafts on pc-c (10 MB)."),
    ],
    ids=["the leader", "beside the model", "nowhere", "behind a split"],
)
def test_a_draft_takes_what_is_left(
    free: tuple[int, ...], leader: str, node: str | None, why: str
) -> None:
    """The plan of the large model is the same as without it."""
    asked = request(shape(40), members(*(one * MB for one in free)), leader=leader)
    without = plan(asked)
    made = plan(replace(asked, draft=shape(1)))
    assert isinstance(without, Plan)
    assert isinstance(made, Plan)
    assert (made.draft.stage.node if made.draft else None) == node
    assert made.why == f"{without.why} {why}"
    assert replace(made, draft=None, why=without.why) == without


def test_what_a_stage_holds_once_is_planned_once() -> None:
    """C02: with both ends on one PC, a tied matrix is one constant; a shared cache is one too."""
    model = shape(2, 10 * MB, embedding_bytes=100 * MB, head_bytes=100 * MB, cache_per_token=MB)
    units = list(model.units)
    units[3] = replace(units[3], shared=(SharedBytes(1, 0, MB),))
    units[5] = replace(units[5], shared=(SharedBytes(0, 100 * MB, 0),))
    tied = replace(model, units=tuple(units))
    fits = members((100 + 20 + 32) * MB)
    asked = request(tied, fits, options(target=32, least=32))
    made = plan(asked)
    check_stages(asked, made)
    (whole,) = stages(made)
    assert (whole.weight_bytes, whole.cache_bytes) == (120 * MB, 32 * MB)
    assert isinstance(plan(replace(asked, shape=model)), NoPlan)
    halves = replace(asked, members=members(200 * MB, 200 * MB), options=options(2, 32, 32))
    apart = plan(halves)
    check_stages(halves, apart)
    assert sum(part.weight_bytes for part in stages(apart)) == 220 * MB


def test_the_pc_with_the_most_cores_serves_alone_then_the_leader() -> None:
    fleet = (member("a", GB), member("b", GB, cores=16), member("c", 8 * GB))
    assert stages(plan(request(shape(40), fleet, leader="a")))[0].node == "b"
    equal = members(GB, GB, 8 * GB)
    assert stages(plan(request(shape(40), equal, leader="b")))[0].node == "b"
    assert stages(plan(request(shape(40), equal, leader="gone")))[0].node == "c"


def test_a_split_starts_at_the_leader_and_says_why() -> None:
    made = plan(request(shape(60), members(300 * MB, 300 * MB, 300 * MB), leader="b"))
    assert isinstance(made, Plan)
    assert made.kind is PlanKind.PIPELINE
    assert [part.node for part in stages(made)] == ["b", "a"]
    assert made.why == (
        "No PC of 3 has 600 MB for the whole model; split over 2 PCs, balanced by computing time."
    )


def test_the_weakest_pc_stays_in_reserve() -> None:
    """P12: rooms of 30, 30 and 1 layers for a model of 40."""
    made = plan(request(shape(40), members(10 * MB, 300 * MB, 300 * MB)))
    assert {part.node for part in stages(made)} == {"b", "c"}


def test_a_leader_without_room_takes_no_stage() -> None:
    made = plan(request(shape(40), members(0, 300 * MB, 300 * MB), leader="a"))
    assert {part.node for part in stages(made)} == {"b", "c"}


def test_equal_pcs_compute_for_as_long_whatever_memory_they_give() -> None:
    made = plan(request(shape(40), members(320 * MB, 240 * MB)))
    assert [(part.node, part.weight_bytes) for part in stages(made)] == [
        ("a", 200 * MB),
        ("b", 200 * MB),
    ]


def test_memory_decides_the_shares_where_time_cannot() -> None:
    made = plan(request(shape(40), members(300 * MB, 150 * MB)))
    assert isinstance(made, Plan)
    first, second = stages(made)
    assert (first.node, second.node) == ("a", "b")
    assert (first.weight_bytes, second.weight_bytes) == (250 * MB, 150 * MB)
    assert made.why.endswith("balanced by computing time (the slowest stage 25 % above the mean).")


def test_the_stage_with_the_head_gets_fewer_layers_and_the_embedding_costs_none() -> None:
    """Qwen2.5-Coder 1.5B: an even split by memory computed 1.5 times as long in the last stage."""
    model = shape(28, 31 * MB, embedding_bytes=234 * MB, head_bytes=234 * MB)
    made = plan(request(model, members(2 * GB, 2 * GB), options(force=2)))
    times = [
        sum(unit.step_bytes for unit in model.units[part.units.first : part.units.end])
        for part in stages(made)
    ]
    assert max(times) / min(times) < 1.05
    assert [part.last_layer for part in stages(made)] == [16, 27]


def test_the_head_goes_where_it_fits() -> None:
    """Largest first would put the head of 250 MB on the smallest PC."""
    model = shape(40, 10 * MB, embedding_bytes=50 * MB, head_bytes=250 * MB)
    made = plan(request(model, members(300 * MB, 300 * MB, 200 * MB)))
    assert [part.node for part in stages(made)] == ["a", "c", "b"]
    assert stages(made)[-1].weight_bytes >= 250 * MB


def test_a_leader_too_small_for_the_embedding_stands_further_back() -> None:
    model = shape(40, 10 * MB, embedding_bytes=250 * MB, head_bytes=0)
    made = plan(request(model, members(150 * MB, 400 * MB, 120 * MB), leader="a"))
    assert stages(made)[0].node == "b"


def test_cache_counts_for_the_room() -> None:
    """P06: the weights alone would fit on one PC."""
    model = shape(40, 10 * MB, cache_per_token=100_000)
    alone = plan(request(model, members(500 * MB, 500 * MB), options(target=20, least=20)))
    assert len(stages(alone)) == 1
    split = plan(request(model, members(500 * MB, 500 * MB), options(target=64, least=64)))
    assert len(stages(split)) == 2
    assert sum(part.cache_bytes for part in stages(split)) == 40 * 100_000 * 64


def test_a_pc_is_judged_by_its_peak_while_loading() -> None:
    """P10: room for the steady state and 5 % is not enough."""
    cost = StageCost(process_bytes=0, cpu_peak=1.3)
    model = shape(40)
    refused = plan(request(model, members(420 * MB), options(cost=cost)))
    assert isinstance(refused, NoPlan)
    assert refused.needed_bytes == 520 * MB
    assert isinstance(plan(request(model, members(520 * MB), options(cost=cost))), Plan)


def test_every_stage_pays_for_its_process() -> None:
    cost = StageCost(process_bytes=100 * MB, cpu_peak=1.0)
    refused = plan(request(shape(40), members(299 * MB, 300 * MB), options(cost=cost)))
    assert isinstance(refused, NoPlan)
    assert (refused.needed_bytes, refused.available_bytes) == (600 * MB, 599 * MB)
    assert isinstance(
        plan(request(shape(40), members(300 * MB, 300 * MB), options(cost=cost))), Plan
    )


def test_bf16_halves_the_cache_and_needs_pcs_that_compute_in_it() -> None:
    model = shape(4, 10 * MB, cache_per_token=100_000)
    fleet = (member("a", GB, devices=(cpu(GB, ("f32",)),)), member("b", GB))
    bf16 = replace(options(), precision="bf16")
    made = plan(request(model, fleet, bf16))
    assert isinstance(made, Plan)
    assert made.precision == "bf16"
    assert stages(made)[0].node == "b"
    assert stages(made)[0].cache_bytes == 4 * 100_000 * 64 // 2


def test_the_context_is_lowered_before_anything_is_refused() -> None:
    model = shape(4, 10 * MB, cache_per_token=10_000)  # 40 kB a token
    made = plan(request(model, members(140 * MB), options(target=8192, least=1024)))
    assert isinstance(made, Plan)
    assert 1875 <= made.cache_tokens <= 2500
    assert made.cache_tokens % 32 == 0
    assert made.context_length == made.cache_tokens
    lowered = f"the context is lowered from 8192 to {made.cache_tokens} tokens to fit."
    assert made.why.endswith(lowered)


def test_lowering_the_cache_of_all_is_not_called_lowering_the_context() -> None:
    model = shape(4, 10 * MB, cache_per_token=10_000, context=512)
    made = plan(request(model, members(140 * MB), options(target=8192, least=1024)))
    assert isinstance(made, Plan)
    assert made.context_length == 512
    assert f"the cache is lowered from 8192 to {made.cache_tokens} tokens" in made.why


def test_the_context_never_exceeds_model_limit_or_cache() -> None:
    fleet = members(GB)
    limited = replace(options(target=4096), context_limit=1000)
    for asked, expected in ((options(target=4096), 2048), (limited, 1000), (options(), 64)):
        made = plan(request(shape(4, context=2048), fleet, asked))
        assert isinstance(made, Plan)
        assert made.context_length == expected
        assert "lowered" not in made.why


def test_a_forced_number_of_stages_is_kept_even_when_one_pc_would_do() -> None:
    for count in (1, 2, 3):
        made = plan(request(shape(40), members(GB, GB, GB), options(force=count)))
        assert len(stages(made)) == count
        assert isinstance(made, Plan)
        assert "asked for" in made.why


def test_the_last_stage_of_three_equal_pcs_is_not_starved_by_the_head() -> None:
    """SmolLM2's shape: a tied embedding that is copied into the head."""
    model = shape(30, 4 * MB, embedding_bytes=28 * MB, head_bytes=28 * MB)
    made = plan(request(model, members(GB, GB, GB), options(force=3)))
    load = load_of(model, "f32", 64)
    steps = [load.steps[part.units.end] - load.steps[part.units.first] for part in stages(made)]
    assert max(steps) - min(steps) <= 7 * MB  # a unit of attention


def test_dead_suspect_and_doubled_members() -> None:
    """J12: a ghost or a doubled entry gets nothing."""
    fleet = (
        member("a", 500 * MB, MemberState.DEAD),
        member("b", 500 * MB, MemberState.SUSPECT),
        member("c", 250 * MB),
        member("c", 250 * MB),
        member("d", 250 * MB),
    )
    made = plan(request(shape(40), fleet))
    assert sorted(part.node for part in stages(made)) == ["c", "d"]


def test_a_device_held_back_is_not_used_and_the_next_one_is() -> None:
    """W07: the PC still takes part on its CPU."""
    broken = replace(cpu(GB, ("f32", "f16"), "the probe crashed"), name="GPU.0")
    fleet = (member("a", GB, devices=(broken, cpu(GB))),)
    assert stages(plan(request(shape(40), fleet)))[0].device == "CPU"


def test_a_gpu_is_charged_with_its_own_peak() -> None:
    """P08: an integrated GPU may take twice the weights while it loads."""
    gpu = replace(cpu(500 * MB, ("f32", "f16")), name="GPU.0")
    cost = StageCost(process_bytes=0, cpu_peak=1.0, gpu_peak=2.0)
    refused = plan(request(shape(40), (member("a", 500 * MB, devices=(gpu,)),), options(cost=cost)))
    assert isinstance(refused, NoPlan)
    assert refused.needed_bytes == 800 * MB


def test_a_device_never_has_more_than_its_pc_gives() -> None:
    fleet = (member("a", 100 * MB, devices=(cpu(10 * GB),)),)
    assert isinstance(plan(request(shape(40), fleet)), NoPlan)


@pytest.mark.parametrize(
    "broken",
    [
        {"precision": "f8"},
        {"minimum_cache_tokens": 0},
        {"minimum_cache_tokens": 9000},
        {"force_stages": 0},
        {"context_limit": 0},
    ],
)
def test_options_that_contradict_themselves_are_refused(broken: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        replace(PlanOptions(), **broken)  # type: ignore[arg-type]


@pytest.mark.slow
def test_sixteen_unlike_pcs_and_128_layers_are_planned_in_a_moment() -> None:
    """The leader plans on its event loop: heartbeats must not wait for it."""
    fleet = members(*[(400 + 37 * index) * MB for index in range(16)])
    model = shape(128, 60 * MB, 380 * MB, 380 * MB)
    started = time.process_time()
    made = plan(request(model, fleet))
    assert time.process_time() - started < 1.0  # 0.1 s alone
    assert len(stages(made)) > 10


def test_unit_kinds_do_not_matter_to_the_plan() -> None:
    """A model whose parts are unknown is cut the same way."""
    model = shape(12)
    blocks = tuple(replace(unit, kind=UnitKind.BLOCK) for unit in model.units)
    plain: ModelShape = replace(model, units=blocks)
    fleet = members(70 * MB, 70 * MB)
    assert stages(plan(request(model, fleet))) == stages(plan(request(plain, fleet)))
