"""Observations -> a Distribution."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshinfer.api.exposition import Distribution
from meshinfer.api.histogram import Histogram

BOUNDS = (1.0, 2.0, 5.0)


def test_before_the_first_observation() -> None:
    assert Histogram((1.0,)).distribution() == Distribution(((1.0, 0),), 0, 0.0)


def test_a_bucket_includes_its_bound() -> None:
    histogram = Histogram(BOUNDS)
    histogram.observe(2.0)
    histogram.observe(2.5, times=2)
    assert histogram.distribution() == Distribution(((1.0, 0), (2.0, 1), (5.0, 3)), 3, 7.0)


@given(st.lists(st.floats(0, 10)))
def test_every_bucket_counts_what_is_at_most_its_bound(values: list[float]) -> None:
    histogram = Histogram(BOUNDS)
    for value in values:
        histogram.observe(value)
    found = histogram.distribution()
    assert found.buckets == tuple((one, sum(value <= one for value in values)) for one in BOUNDS)
    assert found.count == len(values)
    assert found.total == pytest.approx(sum(values))
