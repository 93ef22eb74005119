"""Distributions and rows are compared as they should be, and bounds refuse what is beyond them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshinfer.core.model import UnitRange
from meshinfer.core.step import Row, Step
from meshinfer.engine.accuracy_guard import (
    AGREEMENT_BOUND,
    DIFFERENCE_BOUND,
    DIVERGENCE_BOUND,
    Accuracy,
    compare,
    joined,
    outputs,
    parts_of,
    refusal,
)
from meshinfer.engine.calibration_input import POSITIONS, InputKind, calibration_input
from meshinfer.engine.toy import ToyStage
from tests.engine.scripted_device import FIRST_HALF, SECOND_HALF, TOY, WHOLE


def logs(rows: list[list[float]]) -> np.ndarray:
    return np.log(np.float32(rows)).astype(np.float16)


@pytest.mark.parametrize("units", [WHOLE, FIRST_HALF, SECOND_HALF], ids=str)
def test_a_stage_agrees_with_itself_and_keeps_nothing(units: UnitRange) -> None:
    stage = ToyStage(units, TOY, 256)
    inputs = calibration_input(None, stage.shape)
    first = joined(outputs(stage, inputs), POSITIONS)
    accuracy = compare(first, outputs(stage, inputs))
    assert (accuracy.positions, accuracy.error) == (POSITIONS, 0)
    assert refusal(accuracy, InputKind.TEXT) == ""
    assert stage.cached(2**32 - 5) == 0


def test_the_output_is_that_of_one_long_step() -> None:
    stage = ToyStage(WHOLE, TOY, 256)
    ids = calibration_input(None, stage.shape).values.tolist()
    logits = stage.forward(Step(0, (Row(1, 0, len(ids), len(ids)),), tuple(ids)), None)
    exponentials = np.exp(np.float64(logits))
    expected = exponentials / exponentials.sum(axis=1, keepdims=True)
    found = joined(outputs(stage, calibration_input(None, stage.shape)), POSITIONS)
    np.testing.assert_allclose(np.exp(found.astype(np.float64)), expected, rtol=0.01)


def test_a_small_cache_takes_fewer_positions() -> None:
    stage = ToyStage(WHOLE, TOY, 48)
    found = joined(outputs(stage, calibration_input(None, stage.shape)), POSITIONS)
    assert len(found) == 48
    assert [len(part) for part in parts_of(found)] == [16, 16, 16]


def test_divergence_of_known_distributions() -> None:
    accuracy = compare(logs([[0.5, 0.5], [0.9, 0.1]]), [logs([[0.9, 0.1], [0.9, 0.1]])])
    expected = (0.5 * np.log(0.5 / 0.9) + 0.5 * np.log(0.5 / 0.1)) / 2
    assert accuracy.divergence == pytest.approx(expected, abs=1e-3)
    assert accuracy.agreement == 1  # the first row of the reference is a tie


def test_only_a_clear_choice_can_be_missed() -> None:
    near, clear = [0.45, 0.40, 0.15], [0.6, 0.3, 0.1]
    swapped = [0.40, 0.45, 0.15]
    accuracy = compare(logs([near, clear]), [logs([swapped]), logs([swapped])])
    assert accuracy.agreement == 0.5


def test_differences_leave_out_the_worst_tenth() -> None:
    reference = np.ones((100, 4), np.float32)
    candidate = reference.copy()
    candidate[:5] = 100
    candidate[5:] *= np.float32(1.01)
    accuracy = compare(reference, parts_of(candidate))
    assert accuracy.difference == pytest.approx(0.01, rel=1e-3)
    assert (accuracy.divergence, accuracy.agreement) == (None, None)


@given(st.integers(1, 60), st.integers(2, 50), st.integers(0, 99))
def test_a_divergence_is_never_negative(rows: int, width: int, seed: int) -> None:
    random = np.random.Generator(np.random.Philox(seed))
    both = random.standard_normal((2, rows, width)).astype(np.float32) * 5
    tops = both - both.max(axis=2, keepdims=True)
    first, second = (tops - np.log(np.exp(tops).sum(axis=2, keepdims=True))).astype(np.float16)
    exact = first.astype(np.float64), second.astype(np.float64)
    expected = (np.exp(exact[0]) * (exact[0] - exact[1])).sum(axis=1).mean()
    accuracy = compare(first, parts_of(second))
    assert accuracy.divergence is not None
    assert accuracy.divergence >= 0
    assert accuracy.divergence == pytest.approx(max(0, expected), abs=1e-3)


@pytest.mark.parametrize(
    ("accuracy", "kind", "named"),
    [
        (Accuracy(128, DIVERGENCE_BOUND, AGREEMENT_BOUND), InputKind.TEXT, ""),
        (Accuracy(128, 0.051, 1.0), InputKind.TEXT, "KL divergence 0.051"),
        (Accuracy(128, 0.001, 0.94), InputKind.TEXT, "agreement 0.94"),
        (Accuracy(128, 0.001, 0.94), InputKind.ACTIVATIONS, "agreement 0.94"),
        (Accuracy(128, 0.001, 0.94), InputKind.INVENTED, ""),
        (Accuracy(128, 0.051, 0.94), InputKind.INVENTED, "KL divergence"),
        (Accuracy(128, float("nan"), 1.0), InputKind.TEXT, "KL divergence nan"),
        (Accuracy(128, difference=DIFFERENCE_BOUND), InputKind.INVENTED, ""),
        (Accuracy(128, difference=0.11), InputKind.INVENTED, "difference 0.11"),
    ],
)
def test_bounds(accuracy: Accuracy, kind: InputKind, named: str) -> None:
    why = refusal(accuracy, kind)
    assert why.startswith(named)
    assert bool(why) is bool(named)
