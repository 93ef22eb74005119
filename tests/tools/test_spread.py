"""Percentiles by nearest rank."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.loads.spread import Spread, percentile, spread


@pytest.mark.parametrize(
    ("figures", "found"),
    [
        ([], None),
        ([3.0], Spread(1, 3.0, 3.0, 3.0, 3.0)),
        ([2.0, 1.0], Spread(2, 1.0, 2.0, 2.0, 2.0)),
        (list(range(1, 101)), Spread(100, 50, 90, 99, 100)),
        (list(range(1, 1001)), Spread(1000, 500, 900, 990, 1000)),
    ],
)
def test_spread(figures: list[float], found: Spread | None) -> None:
    assert spread(figures) == found


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0.001, 100))
def test_so_many_are_not_above_it_and_no_smaller_figure_would_do(
    figures: list[float], percent: float
) -> None:
    ordered = sorted(figures)
    found = percentile(ordered, percent)
    share = len(ordered) * percent / 100
    assert sum(one <= found for one in ordered) >= share - 1e-9
    assert sum(one < found for one in ordered) < share + 1e-9
