"""Why there is no plan: the sentence, the two figures and every PC's room."""

from __future__ import annotations

from dataclasses import replace

from meshinfer.core.fleet import Member, MemberState
from meshinfer.core.model import ModelShape
from meshinfer.core.plan import NoPlan
from meshinfer.mesh.planner import PlanOptions, plan
from meshinfer.mesh.rooms import StageCost
from tests.mesh.fleets import FREE_OF_CHARGE, GB, MB, cpu, member, members, request, shape


def refused(
    model: ModelShape,
    fleet: tuple[Member, ...],
    force: int | None = None,
    cost: StageCost = FREE_OF_CHARGE,
) -> NoPlan:
    options = PlanOptions(
        force_stages=force, target_cache_tokens=64, minimum_cache_tokens=32, cost=cost
    )
    outcome = plan(request(model, fleet, options))
    assert isinstance(outcome, NoPlan), outcome
    return outcome


def test_an_impossible_model_is_refused_with_every_figure() -> None:
    """P03: 10 GB, three PCs of 3 GB."""
    outcome = refused(shape(40, 250 * MB), members(3 * GB, 3 * GB, 3 * GB))
    assert outcome.needed_bytes == 10 * GB
    assert outcome.available_bytes == 9 * GB
    assert outcome.rooms == (("a", 3 * GB), ("b", 3 * GB), ("c", 3 * GB))
    assert outcome.why == (
        "toy needs 10 GB on 3 PCs (weights while they load, cache for 32 tokens, a process each), "
        "but they give 9 GB: pc-a 3 GB, pc-b 3 GB, pc-c 3 GB."
    )


def test_processes_and_peaks_are_part_of_what_is_needed() -> None:
    cost = StageCost(process_bytes=200 * MB, cpu_peak=1.5)
    outcome = refused(shape(40), members(300 * MB, 300 * MB), cost=cost)
    assert outcome.needed_bytes == 2 * 200 * MB + 600 * MB
    assert outcome.available_bytes == 600 * MB


def test_pcs_that_cannot_even_hold_a_process_are_not_counted() -> None:
    cost = StageCost(process_bytes=200 * MB, cpu_peak=1.0)
    outcome = refused(shape(40), members(*[150 * MB] * 9), cost=cost)
    assert outcome.available_bytes == 0
    assert outcome.needed_bytes == 600 * MB
    assert "pc-a gives 150 MB, and a stage takes more than 200 MB" in outcome.why


def test_a_fleet_without_devices_tells_what_each_pc_said() -> None:
    note = "is not used: the device probe crashed (signal 11)"
    fleet = (member("a", GB, devices=(cpu(GB, note=note),)), member("b", GB, devices=()))
    outcome = refused(shape(4), fleet)
    assert "pc-a: CPU is not used: the device probe crashed (signal 11)" in outcome.why
    assert "pc-b: no device" in outcome.why
    assert outcome.rooms == (("a", 0), ("b", 0))
    assert (outcome.needed_bytes, outcome.available_bytes) == (40 * MB, 0)


def test_nobody_alive() -> None:
    fleet = (member("a", GB, MemberState.DEAD),)
    outcome = refused(shape(4), fleet)
    assert outcome.why == "No PC of the fleet has a device that could compute a stage."
    assert outcome.rooms == (("a", 0),)
    assert refused(shape(4), ()).rooms == ()


def test_more_stages_than_pcs() -> None:
    outcome = refused(shape(40), members(GB, GB, GB), force=4)
    assert outcome.why == "4 stages on 4 PCs were asked for, but only 3 PCs can take one."
    assert refused(shape(40), members(GB), force=2).why.endswith("but only 1 PC can take one.")


def test_more_stages_than_parts() -> None:
    outcome = refused(shape(1), members(*[GB] * 5), force=5)
    assert outcome.why == "5 stages were asked for, but toy has only 4 parts."


def test_a_forced_count_with_a_pc_that_is_too_small() -> None:
    cost = StageCost(process_bytes=200 * MB, cpu_peak=1.0)
    outcome = refused(shape(40), members(GB, GB, 100 * MB), force=3, cost=cost)
    assert "pc-c gives 100 MB, and a stage takes more than 200 MB" in outcome.why


def test_a_forced_single_stage_is_told_about_one_pc() -> None:
    outcome = refused(shape(40), members(300 * MB, 200 * MB), force=1)
    assert "toy needs 400 MB on one PC" in outcome.why
    assert outcome.available_bytes == 300 * MB


def test_pieces_that_do_not_divide_are_not_called_a_lack_in_sum() -> None:
    """450 MB in three pieces of 150 MB do not go into two rooms of 240 MB."""
    model = replace(shape(1, 300 * MB, embedding_bytes=150 * MB))
    outcome = refused(model, members(240 * MB, 240 * MB))
    assert outcome.needed_bytes == 600 * MB
    assert outcome.available_bytes == 480 * MB
    assert "would fit in sum but not piece by piece" in outcome.why
    assert "1.25 times as large" in outcome.why


def test_one_piece_too_big_for_every_pc() -> None:
    outcome = refused(shape(1, 2 * MB, head_bytes=300 * MB), members(*[200 * MB] * 8))
    assert outcome.needed_bytes > outcome.available_bytes
    assert "1.50 times as large" in outcome.why


def test_a_long_list_of_pcs_is_cut_in_the_sentence_only() -> None:
    outcome = refused(shape(40, 250 * MB), members(*[100 * MB] * 9))
    assert outcome.why.endswith("pc-f 100 MB and 3 more.")
    assert len(outcome.rooms) == 9
