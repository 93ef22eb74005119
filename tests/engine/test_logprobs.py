"""Log-probabilities are those of the model's own distribution."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshinfer.engine.logprobs import with_logprobs


@given(st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=40), st.integers(0, 20))
def test_they_are_those_of_a_softmax_in_float64(values: list[float], count: int) -> None:
    row = np.array(values, np.float32)
    exact = row.astype(np.float64) - row.max()
    exact -= math.log(np.exp(exact).sum())
    drawn = with_logprobs(row, float(row.max()), len(values) // 2, count)
    assert drawn.token == len(values) // 2
    assert drawn.logprob == pytest.approx(exact[drawn.token], abs=1e-5)
    ranked = sorted(range(len(row)), key=lambda token: (-row[token], token))[:count]
    assert [token for token, _ in drawn.alternatives] == ranked
    assert [logprob for _, logprob in drawn.alternatives] == pytest.approx(
        exact[ranked].tolist(), abs=1e-5
    )


def test_a_token_that_cannot_come_is_no_alternative() -> None:
    row = np.array([1.0, -np.inf, 2.0, -np.inf], np.float32)
    assert [token for token, _ in with_logprobs(row, 2.0, 0, 4).alternatives] == [2, 0]
