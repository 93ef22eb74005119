"""Times are medians of the right steps, and the cache is as it was."""

from __future__ import annotations

import pytest

from meshinfer.core.configuration import REFERENCE
from meshinfer.core.model import UnitRange
from meshinfer.core.step_curve import StepCurve
from meshinfer.engine.step_timing import (
    DECODE_ROWS,
    PREFILL_TOKENS,
    TRIAL_CACHE_TOKENS,
    Sizes,
    measure,
)
from tests.engine.scripted_device import (
    FIRST_HALF,
    SECOND_HALF,
    WHOLE,
    Behaviour,
    ScriptedDevice,
)


def device(units: UnitRange = WHOLE, cache_tokens: int = TRIAL_CACHE_TOKENS) -> ScriptedDevice:
    return ScriptedDevice(lambda _: Behaviour(0.01, 0.001), units, cache_tokens)


@pytest.mark.parametrize("units", [WHOLE, FIRST_HALF, SECOND_HALF], ids=str)
def test_all_sizes_are_measured(units: UnitRange) -> None:
    one = device(units)
    stage = one.load(REFERENCE)
    timing = measure(stage, one.clock)
    assert timing.is_complete
    assert [rows for rows, _ in timing.curve.decode] == sorted(DECODE_ROWS)
    assert [tokens for tokens, _ in timing.curve.prefill] == sorted(PREFILL_TOKENS)
    for count, seconds in (*timing.curve.decode, *timing.curve.prefill):
        assert seconds == pytest.approx(0.01 + 0.001 * count)


def test_nothing_stays_in_the_cache() -> None:
    one = device(cache_tokens=96)
    stage = one.load(REFERENCE)
    for _ in range(3):  # a sequence that stayed would leave no room for the next round
        measure(stage, one.clock)
    assert all(stage.cached(2**32 - 4 - number) == 0 for number in range(40))


@pytest.mark.parametrize(
    ("cache_tokens", "rows", "tokens"),
    [(32, [1], [16]), (96, [1], [16, 64]), (320, [1, 2, 4, 8], [16, 64, 256])],
)
def test_sizes_that_do_not_fit_are_left_out(
    cache_tokens: int, rows: list[int], tokens: list[int]
) -> None:
    one = device(cache_tokens=cache_tokens)
    curve = measure(one.load(REFERENCE), one.clock).curve
    assert [count for count, _ in curve.decode] == rows
    assert [count for count, _ in curve.prefill] == tokens


def test_a_hopeless_candidate_shows_three_points_twice_and_no_more() -> None:
    one = device()
    seen: list[int] = []

    def is_hopeless(curve: StepCurve) -> bool:
        seen.append(len(curve.decode))
        return True

    timing = measure(one.load(REFERENCE), one.clock, is_hopeless=is_hopeless)
    assert not timing.is_complete
    assert (seen, len(timing.curve.decode), timing.curve.prefill) == ([3, 3], 3, ())


def test_a_slow_stage_is_not_run_more_often_than_needed() -> None:
    one = ScriptedDevice(lambda _: Behaviour(step_s=0.9, token_s=0.0, load_s=0.0))
    measure(one.load(REFERENCE), one.clock, Sizes((1,), (16,)))
    # The beginning and one run each; then the beginning and the first once more.
    assert one.clock.now == pytest.approx(5 * 0.9)


def test_a_busy_moment_is_measured_again() -> None:
    steps: list[int] = []

    def busy(tokens: int) -> float:
        steps.append(tokens)
        return 5.0 if len(steps) <= 7 else 1.0  # until all row counts are through

    one = ScriptedDevice(lambda _: Behaviour(0.3, 0.001, delay=busy))
    timing = measure(one.load(REFERENCE), one.clock)
    assert timing.is_complete
    for rows, seconds in timing.curve.decode:
        assert seconds == pytest.approx(0.3 + 0.001 * rows)


def test_what_only_seemed_hopeless_is_measured_to_its_end() -> None:
    steps: list[int] = []

    def busy(tokens: int) -> float:
        steps.append(tokens)
        return 5.0 if len(steps) <= 4 else 1.0  # the beginning and the first three points

    one = ScriptedDevice(lambda _: Behaviour(0.3, 0.001, delay=busy))
    timing = measure(
        one.load(REFERENCE), one.clock, is_hopeless=lambda curve: curve.decode_s(1) > 0.5
    )
    assert timing.is_complete
    assert timing.curve.decode_s(1) == pytest.approx(0.301)


def test_at_the_deadline_it_ends_with_what_it_has() -> None:
    one = ScriptedDevice(lambda _: Behaviour(step_s=2.0, token_s=0.0, load_s=0.0))
    timing = measure(one.load(REFERENCE), one.clock, deadline_s=7.0)
    assert not timing.is_complete
    assert one.clock.now == pytest.approx(8.0)
    assert len(timing.curve.decode) == 3
