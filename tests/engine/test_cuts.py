"""The cuts keep what a sort of everything would keep."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshinfer.engine.cuts import at_least, nucleus, top_k

ROW = st.lists(st.sampled_from([-np.inf, -2.0, -1.5, 0.0, 0.25, 3.0, 7.5]), min_size=1, max_size=30)


@given(ROW, st.integers(0, 35))
def test_top_k_of_a_short_row(row: list[float], count: int) -> None:
    _check_top_k(np.array(row, np.float32), count)


@given(st.integers(0, 2**32), st.sampled_from([1, 2, 5, 15, 40, 500]), st.booleans())
def test_top_k_of_a_long_row(seed: int, count: int, ties: bool) -> None:
    row = np.random.default_rng(seed).standard_normal(1003).astype(np.float32)
    _check_top_k(np.round(row, 1) if ties else row, count)


def _check_top_k(row: np.ndarray[tuple[int], np.dtype[np.float32]], count: int) -> None:
    found = top_k(row, count)
    if not 0 < count < len(row):
        assert found is None
        return
    assert found is not None
    ranked = sorted(range(len(row)), key=lambda token: (-row[token], token))
    assert found.tolist() == sorted(ranked[:count])


@given(st.lists(st.integers(1, 64), min_size=1, max_size=30), st.integers(0, 63))
def test_a_nucleus_is_the_smallest_set_that_holds_the_share(
    weights: list[int], sixtyfourths: int
) -> None:
    # Powers of two throughout: every sum here is exact.
    found = nucleus(np.array(weights, np.float32), sixtyfourths / 64).tolist()
    ranked = sorted(range(len(weights)), key=lambda place: (-weights[place], place))
    kept: list[int] = []
    held = 0
    for place in ranked:
        if kept and held * 64 >= sixtyfourths * sum(weights):
            break
        kept.append(place)
        held += weights[place]
    assert found == sorted(kept)


@pytest.mark.parametrize(
    ("min_p", "places"), [(0.001, [0, 1, 2]), (0.25, [1, 2]), (0.26, [1]), (1.0, [1]), (9.0, [1])]
)
def test_min_p_is_a_share_of_the_greatest(min_p: float, places: list[int]) -> None:
    assert at_least(np.array([0.1, 1.0, 0.25], np.float32), min_p).tolist() == places
