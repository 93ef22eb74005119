"""When to dial again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshinfer.link.backoff import Backoff


@pytest.mark.parametrize(
    ("failures", "seconds"), [(0, 0.0), (1, 1.0), (2, 2.0), (3, 4.0), (6, 32.0), (7, 60.0)]
)
def test_waits_double_up_to_a_minute(failures: int, seconds: float) -> None:
    assert Backoff().delay_s(failures, 0.5) == seconds


def test_a_refusal_waits_long_at_once() -> None:
    assert Backoff().delay_s(1, 0.5, refused=True) == 60.0


def test_the_spread_is_a_fifth_each_way() -> None:
    assert Backoff().delay_s(1, 0.0) == pytest.approx(0.8)
    assert Backoff().delay_s(1, 1.0) == pytest.approx(1.2)


@given(failures=st.integers(1, 10**9), random=st.floats(0, 1, exclude_max=True))
def test_a_wait_is_never_zero_and_never_over_the_longest(failures: int, random: float) -> None:
    assert 0.8 <= Backoff().delay_s(failures, random) <= 72.0
