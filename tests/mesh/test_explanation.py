"""The lines of `meshinfer plan`."""

from __future__ import annotations

from meshinfer.core.fleet import MemberState
from meshinfer.mesh.explanation import explain
from meshinfer.mesh.planner import PlanOptions, plan
from tests.mesh.fleets import FREE_OF_CHARGE, GB, MB, cpu, member, request, shape


def test_a_plan_is_told_stage_by_stage_with_the_pcs_that_are_left_out() -> None:
    fleet = (
        member("a", 300 * MB),
        member("b", 300 * MB),
        member("c", 50 * MB),
        member("d", GB, MemberState.DEAD),
        member("e", GB, devices=(cpu(GB, note="could not be asked"),)),
    )
    made = plan(request(shape(40, cache_per_token=1000), fleet))
    assert explain(made, fleet) == [
        "No PC of 3 has 403 MB for the whole model; split over 2 PCs, balanced by computing time.",
        "pipeline, f32, context 64 tokens, cache 64 tokens",
        "1. pc-a (leader) on CPU: layers 0 to 19, 200 MB of weights, 1.28 MB of cache",
        "2. pc-b on CPU: layers 20 to 39, 200 MB of weights, 1.28 MB of cache",
        "-  pc-c: in reserve, 50 MB free",
        "-  pc-d: not used, dead",
        "-  pc-e: not used, CPU could not be asked",
    ]


def test_a_refusal_is_told_with_every_room() -> None:
    fleet = (
        member("a", 300 * MB),
        member("b", GB, MemberState.SUSPECT),
        member("c", 0),
        member("d", GB, devices=(cpu(GB, note="could not be asked"),)),
    )
    outcome = plan(request(shape(40), fleet))
    lines = explain(outcome, fleet)
    assert lines[0].startswith("toy needs 400 MB")
    assert lines[1:] == [
        "needed 400 MB, available 300 MB",
        "-  pc-a: 300 MB",
        "-  pc-b: 0 B (suspect)",
        "-  pc-c: 0 B (no memory to give)",
        "-  pc-d: 0 B (CPU could not be asked)",
    ]


def test_a_forced_stage_and_a_lone_pc_have_their_own_words() -> None:
    options = PlanOptions(
        force_stages=1, target_cache_tokens=64, minimum_cache_tokens=32, cost=FREE_OF_CHARGE
    )
    fleet = (member("a", GB),)
    made = plan(request(shape(4), fleet, options))
    assert explain(made, fleet)[0] == (
        "One stage was asked for, and pc-a holds the whole model (40 MB of its 1 GB)."
    )
    assert explain(plan(request(shape(4), fleet)), fleet)[0] == (
        "pc-a holds the whole model (40 MB of its 1 GB)."
    )


def test_a_pc_that_left_is_named_by_its_id() -> None:
    fleet = (member("a", GB),)
    assert "1. a (leader) on CPU" in explain(plan(request(shape(4), fleet)), ())[2]
