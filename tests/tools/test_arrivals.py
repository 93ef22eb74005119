"""Pauses and arrivals: the same for the same seed, and on average what was asked for."""

from __future__ import annotations

import random
from itertools import islice, pairwise

import pytest

from tools.loads.arrivals import ThinkTime, poisson


def test_arrivals_ascend_at_the_rate_and_depend_on_the_seed_only() -> None:
    moments = list(islice(poisson(20.0, random.Random(3)), 4000))
    assert all(before <= after for before, after in pairwise(moments))
    assert 180 < moments[-1] < 220
    assert moments == list(islice(poisson(20.0, random.Random(3)), 4000))
    assert moments != list(islice(poisson(20.0, random.Random(4)), 4000))


def test_pauses() -> None:
    chance = random.Random(1)
    assert ThinkTime(2.0, is_fixed=True).pause_s(chance) == 2.0
    assert ThinkTime().pause_s(chance) == 0.0
    pauses = [ThinkTime(2.0).pause_s(chance) for _ in range(4000)]
    assert 1.9 < sum(pauses) / len(pauses) < 2.1
    assert min(pauses) < 0.1


@pytest.mark.parametrize(
    ("text", "think"),
    [
        ("2", ThinkTime(2.0, True)),
        ("0.5s", ThinkTime(0.5, True)),
        ("fixed:3", ThinkTime(3.0, True)),
        ("exp:3s", ThinkTime(3.0, False)),
    ],
)
def test_think_times_are_read(text: str, think: ThinkTime) -> None:
    assert ThinkTime.parse(text) == think


@pytest.mark.parametrize("text", ["", "x", "normal:2", "exp:", "-1", "inf", "nan"])
def test_other_words_are_no_think_times(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        ThinkTime.parse(text)
