from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from meshinfer.weights.int4 import (
    Rounded,
    group_size,
    int4_asymmetric,
    int4_symmetric,
    int8_asymmetric,
)

ROUNDINGS = [
    pytest.param(lambda values: int4_symmetric(values, 32), id="int4"),
    pytest.param(lambda values: int4_asymmetric(values, 32), id="int4-asym"),
    pytest.param(int8_asymmetric, id="int8"),
]


def _weights(rows: int = 40, columns: int = 128, seed: int = 1) -> NDArray[Any]:
    return np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32) * 0.05


def _steps(rounded: Rounded) -> NDArray[Any]:
    """The scale of each value, f32 [rows, columns]."""
    scale = np.abs(rounded.scale.astype(np.float32))
    return np.broadcast_to(scale, rounded.codes.shape).reshape(len(scale), -1)


@pytest.mark.parametrize(
    ("columns", "wanted", "size"),
    [(1536, 128, 128), (576, 128, 64), (896, 128, 128), (1536, 64, 64), (100, 32, 4), (7, 64, 1)],
)
def test_a_group_that_does_not_divide_a_row_is_halved_until_it_does(
    columns: int, wanted: int, size: int
) -> None:
    assert group_size(columns, wanted) == size


def test_the_end_of_larger_magnitude_of_a_symmetric_group_is_exact() -> None:
    """NNCF's signed scale: -8 exists and +8 does not, so the sign follows the larger end."""
    rows = np.array([[-0.8, 0.1, 0.2, 0.7], [0.8, -0.1, -0.2, -0.7]], np.float32)
    rounded = int4_symmetric(rows, 4)
    assert rounded.codes.reshape(2, 4).tolist() == [[-8, 1, 2, 7], [-8, 1, 2, 7]]
    np.testing.assert_allclose(rounded.scale.reshape(2), [0.1, -0.1], rtol=1e-3)
    assert rounded.zero is None


def test_zero_points_put_zero_on_a_code() -> None:
    rows = np.array([[0.0, 0.5, 1.0, 1.5], [-1.5, -0.5, 0.0, -1.0]], np.float32)
    rounded = int4_asymmetric(rows, 4)
    assert rounded.zero is not None
    assert rounded.zero.reshape(2).tolist() == [0, 15]
    np.testing.assert_allclose(rounded.values(), rows, atol=2e-3)


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_a_value_moves_by_half_a_step_unless_it_is_at_the_end(rounding: Any) -> None:
    values = _weights()
    rounded = rounding(values)
    moved = np.abs(rounded.values() - values) / _steps(rounded)
    # +8 of a symmetric group and what f16 takes from a scale are the exceptions.
    assert moved.max() < 1.1
    assert np.mean(moved <= 0.51) > 0.97


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_rows_are_rounded_each_for_itself(rounding: Any) -> None:
    """A stage, a range and a chunk of the head give the codes that the whole gives."""
    values = _weights(rows=3000)
    whole, part = rounding(values), rounding(values[1234:1300])
    assert np.array_equal(whole.codes[1234:1300], part.codes)
    assert np.array_equal(whole.scale[1234:1300], part.scale)


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("fill", [0.0, 1e-30, -0.25, 0.25, 60000.0])
def test_rows_of_one_value_stay_finite_and_close(rounding: Any, fill: float) -> None:
    values = np.full((2, 64), fill, np.float32)
    result = rounding(values).values()
    np.testing.assert_allclose(result, values, rtol=2e-3, atol=1e-5)


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_f16_and_f32_of_the_same_values_round_alike(rounding: Any) -> None:
    half = _weights().astype(np.float16)
    first, second = rounding(half), rounding(half.astype(np.float32))
    assert np.array_equal(first.codes, second.codes)


@given(seed=st.integers(0, 1000), spread=st.floats(1e-3, 100))
def test_more_bits_and_smaller_groups_are_never_much_worse(seed: int, spread: float) -> None:
    values = _weights(8, 256, seed) * np.float32(spread)

    def error(rounded: Rounded) -> float:
        return float(np.square(rounded.values() - values).sum())

    assert error(int8_asymmetric(values)) < error(int4_asymmetric(values, 128))
    assert error(int4_symmetric(values, 32)) < 1.05 * error(int4_symmetric(values, 128))
