"""Trials follow a short path, and the choice is fast, accurate and simple, in this order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshinfer.core.configuration import REFERENCE, Configuration, default_configuration
from meshinfer.core.step_curve import StepCurve
from meshinfer.engine.accuracy_guard import Accuracy
from meshinfer.engine.calibration_plan import (
    DECODE_WEIGHTS,
    MOST_TRIALS,
    PREFILL_WEIGHTS,
    Space,
    Trial,
    best_elsewhere,
    choose,
    full_space,
    is_contender,
    next_configuration,
    relative_time,
)
from meshinfer.engine.step_timing import DECODE_ROWS, PREFILL_TOKENS

SPACE = full_space("f32", 0, 8, ("f32", "bf16"))
BASE = StepCurve(
    tuple((rows, 0.07 + 0.008 * rows) for rows in sorted(DECODE_ROWS)),
    tuple((tokens, 0.1 + 0.004 * tokens) for tokens in sorted(PREFILL_TOKENS)),
)


def times(share: float) -> StepCurve:
    return StepCurve(
        tuple((size, seconds * share) for size, seconds in BASE.decode),
        tuple((size, seconds * share) for size, seconds in BASE.prefill),
    )


def trial(text: str, share: float, error: float = 0.001, **more: object) -> Trial:
    made = Trial(Configuration.parse(text), times(share), True, Accuracy(128, error, 1.0))
    return replace(made, **more)


def walk(space: Space, behave: Callable[[Configuration], Trial]) -> list[Trial]:
    trials: list[Trial] = []
    while (configuration := next_configuration(space, trials)) is not None:
        made = behave(configuration)
        if any(one.configuration == configuration for one in trials):
            assert configuration == space.start
            trials = [one for one in trials if one.configuration != configuration]
            made = replace(made, is_confirmed=True)
        trials.append(made)
        assert len(trials) + sum(one.is_confirmed for one in trials) <= MOST_TRIALS
    return trials


def path(space: Space, behave: Callable[[Configuration], Trial]) -> list[str]:
    return [str(one.configuration) for one in walk(space, behave)]


def alike(configuration: Configuration) -> Trial:
    return trial(str(configuration), 1.0)


def test_weights_are_of_the_sizes_that_are_measured() -> None:
    assert set(DECODE_WEIGHTS) == set(DECODE_ROWS)
    assert set(PREFILL_WEIGHTS) == set(PREFILL_TOKENS)
    total = sum(DECODE_WEIGHTS.values()) + sum(PREFILL_WEIGHTS.values())
    assert total == pytest.approx(1)


def test_the_path_where_nothing_beats_the_default() -> None:
    def behave(configuration: Configuration) -> Trial:
        share = 1.0 if configuration == SPACE.start else 1.1
        return trial(str(configuration), share)

    assert path(SPACE, behave) == [
        "f32/128/f32", "f32/0/f32", "f32/32/f32", "f32/128/f32/4", "f32/128/u8", "f32/64/f32",
        "bf16/128/bf16",
    ]  # fmt: skip


def test_each_part_is_changed_from_the_best_so_far() -> None:
    def behave(configuration: Configuration) -> Trial:
        share = 0.9 if configuration.group == 32 else 1.0
        share *= 0.8 if configuration.threads == 4 else 1.0
        return trial(str(configuration), share)

    trials = walk(SPACE, behave)
    assert [str(one.configuration) for one in trials] == [
        "f32/0/f32", "f32/32/f32", "f32/32/f32/4", "f32/32/u8/4", "f32/64/f32/4", "f32/128/f32",
    ]  # fmt: skip
    # Something else is about to be taken: the last load confirms the start's time.
    assert trials[-1].is_confirmed
    assert str(choose(SPACE, trials).configuration) == "f32/32/f32/4"


def test_a_group_between_two_is_left_out_where_the_first_was_far_behind() -> None:
    def behave(configuration: Configuration) -> Trial:
        is_complete = configuration.group != 32
        return trial(str(configuration), 1.0 if is_complete else 1.9, is_complete=is_complete)

    assert "f32/64/f32" not in path(SPACE, behave)


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (full_space("f32", 0, 2, ("f32",)), ["f32/128/f32", "f32/0/f32", "f32/32/f32"]),
        (full_space("f32", 2, 8, ("f32",)), ["f32/128/f32/2", "f32/0/f32/2", "f32/32/f32/2"]),
        (full_space("bf16", 0, 2, ("f32", "bf16")), ["bf16/32/bf16", "f32/0/f32", "bf16/128/bf16"]),
        (full_space("f32", 6, 8, ("f32",)), ["f32/128/f32/6", "f32/0/f32/6", "f32/32/f32/6"]),
        (Space(default_configuration("f32")), ["f32/128/f32"]),
        (Space(Configuration.parse("f32/64/u8/1"), REFERENCE, is_forced=True),
         ["f32/64/u8/1", "f32/0/f32"]),
    ],
)  # fmt: skip
def test_paths_begin_with_the_start_and_the_reference(space: Space, expected: list[str]) -> None:
    assert path(space, alike)[:3] == expected


def test_half_the_threads_are_tried_from_four_on() -> None:
    halves = [full_space("f32", limit, most, ("f32",)).half_threads
              for limit, most in ((0, 3), (0, 4), (2, 16), (6, 16))]  # fmt: skip
    assert halves == [0, 2, 0, 3]


def test_a_plan_in_bf16_looks_once_at_f32_beside_the_reference() -> None:
    space = full_space("bf16", 0, 2, ("f32", "bf16"))
    looked = [one for one in path(space, alike) if one.startswith("f32")]
    assert len(looked) == 2
    assert looked[0] == "f32/0/f32"


START, SAFE = trial("f32/128/f32", 1.0), trial("f32/0/f32", 1.3, 0.0)


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ([], "f32/128/f32"),
        ([trial("f32/32/f32", 0.8)], "f32/32/f32"),
        ([trial("f32/32/f32", 0.8, refused="KL")], "f32/128/f32"),
        ([trial("f32/32/f32", 0.8, is_complete=False)], "f32/128/f32"),
        ([trial("f32/32/f32", 0.8, accuracy=None)], "f32/128/f32"),
        ([trial("bf16/32/bf16", 0.5)], "f32/128/f32"),
        ([Trial(Configuration.parse("f32/32/f32"), refused="no driver")], "f32/128/f32"),
        # Within 3 %: the more accurate, then the simpler one.
        ([trial("f32/32/f32", 1.02, 0.0004)], "f32/32/f32"),
        ([trial("f32/32/f32", 1.04, 0.0001)], "f32/128/f32"),
        ([trial("f32/32/f32", 0.98, 0.004)], "f32/128/f32"),
        ([trial("f32/128/f32/4", 0.98)], "f32/128/f32"),
        ([trial("f32/128/f32/4", 0.9)], "f32/128/f32/4"),
    ],
)
def test_the_choice(others: list[Trial], expected: str) -> None:
    assert str(choose(SPACE, [START, SAFE, *others]).configuration) == expected


def test_a_start_that_is_refused_gives_way_to_the_reference() -> None:
    refused = replace(START, refused="KL divergence 0.2 is above 0.05")
    assert choose(SPACE, [refused, SAFE]).configuration == REFERENCE


def test_a_start_that_is_refused_stays_where_there_is_nothing_else() -> None:
    refused = replace(START, refused="KL divergence 0.2 is above 0.05")
    broken = Trial(REFERENCE, refused="no driver")
    assert choose(SPACE, [refused, broken]) == refused
    assert choose(SPACE, []).configuration == SPACE.start


def test_a_forced_start_is_taken_whatever_is_found() -> None:
    space = Space(Configuration.parse("f32/128/u8"), REFERENCE, is_forced=True)
    forced = trial("f32/128/u8", 1.0, 0.3, refused="KL divergence 0.3 is above 0.05")
    assert choose(space, [forced, trial("f32/0/f32", 0.5)]) == forced


def test_what_another_precision_would_gain() -> None:
    trials = [START, trial("bf16/32/bf16", 0.9), trial("bf16/128/bf16", 0.8),
              trial("bf16/64/bf16", 0.5, refused="KL")]  # fmt: skip
    found = best_elsewhere(trials, START)
    assert found is not None
    assert (str(found[0].configuration), found[1]) == ("bf16/128/bf16", pytest.approx(0.8))
    assert best_elsewhere([START, SAFE], START) is None


@given(st.floats(0.1, 10))
def test_a_curve_relative_to_itself(share: float) -> None:
    assert relative_time(times(share), BASE) == pytest.approx(share)
    short = StepCurve(times(share).decode[:3])
    assert relative_time(short, BASE) == pytest.approx(share)
    assert is_contender(times(share), BASE) is (share <= 1.03 or share == pytest.approx(1.03))


def test_rows_of_an_office_count_more_than_crowds() -> None:
    few = StepCurve(((1, 0.5), *BASE.decode[1:]), BASE.prefill)
    assert relative_time(StepCurve(((1, 0.9), (32, 1.1))), StepCurve(((1, 1.0), (32, 1.0)))) < 1
    assert relative_time(few, BASE) != 1
    assert relative_time(StepCurve(((3, 1.0),)), BASE) == 1.0  # nothing in common


@given(
    st.dictionaries(
        st.sampled_from(["f32/128/f32", "f32/0/f32", "f32/32/f32", "f32/64/f32", "f32/128/u8"]),
        st.tuples(st.floats(0.5, 2), st.floats(0, 0.1), st.booleans(), st.sampled_from(["", "no"])),
    )
)
def test_what_is_chosen_may_be_taken_or_is_the_start(
    found: dict[str, tuple[float, float, bool, str]],
) -> None:
    trials = [
        trial(text, share, error, is_complete=is_complete, refused=refused)
        for text, (share, error, is_complete, refused) in found.items()
    ]
    chosen = choose(SPACE, trials)
    if chosen.configuration != SPACE.start:
        assert chosen.is_complete
        assert not chosen.refused
        # Nothing that may be taken is faster by more than counts as equal.
        assert chosen.curve is not None
        for one in trials:
            if one.is_complete and not one.refused and one.curve is not None:
                assert relative_time(chosen.curve, one.curve) <= 1.0301
