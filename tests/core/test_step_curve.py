"""A curve passes through what was measured and never runs down beyond it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshinfer.core.step_curve import Points, StepCurve

MEASURED = StepCurve(((1, 0.07), (4, 0.08), (16, 0.2)), ((16, 0.2), (64, 0.5), (256, 2.0)))

points = st.dictionaries(
    st.integers(1, 512), st.floats(1e-6, 10), min_size=1, max_size=8
).map(lambda found: tuple(sorted(found.items())))  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "seconds"),
    [(0, 0.07), (1, 0.07), (2, 0.07 + 0.01 / 3), (4, 0.08), (10, 0.14), (16, 0.2), (28, 0.32)],
)
def test_decode_steps(rows: int, seconds: float) -> None:
    assert MEASURED.decode_s(rows) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("tokens", "seconds"),
    [(1, 0.07), (16, 0.2), (40, 0.35), (64, 0.5), (256, 2.0), (512, 4.0)],
)
def test_prompt_chunks(tokens: int, seconds: float) -> None:
    assert MEASURED.prefill_s(tokens) == pytest.approx(seconds)


def test_one_point_is_a_flat_line_and_stands_in_for_chunks() -> None:
    curve = StepCurve(((4, 0.1),))
    assert {curve.decode_s(count) for count in (1, 4, 99)} == {0.1}
    assert curve.prefill_s(64) == 0.1


def test_a_curve_that_falls_at_its_end_goes_on_flat() -> None:
    assert StepCurve(((1, 0.2), (8, 0.1))).decode_s(100) == 0.1


@given(points)
def test_measured_points_are_on_the_curve(measured: Points) -> None:
    curve = StepCurve(measured)
    assert all(curve.decode_s(rows) == pytest.approx(time) for rows, time in measured)


@given(points, st.integers(1, 512))
def test_between_two_points_a_time_lies_between_theirs(measured: Points, rows: int) -> None:
    time = StepCurve(measured).decode_s(rows)
    assert time >= min(seconds for _, seconds in measured) * 0.999
    if rows <= measured[-1][0]:
        assert time <= max(seconds for _, seconds in measured) * 1.001


@pytest.mark.parametrize(
    "decode",
    [
        (),
        ((0, 0.1),),
        ((2, 0.1), (1, 0.1)),
        ((1, 0.1), (1, 0.2)),
        ((1, 0.0),),
        ((1, -1.0),),
        ((1, float("nan")),),
        ((1, float("inf")),),
    ],
    ids=str,
)
def test_points_that_cannot_be_are_refused(decode: Points) -> None:
    with pytest.raises(ValueError, match="step curve"):
        StepCurve(decode)
