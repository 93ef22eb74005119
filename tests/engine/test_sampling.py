"""Draws: greedy, tempered, cut to k or p; the same at any place and in any company."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshinfer.core.request import GREEDY, Sampling
from meshinfer.engine.sampling import draw, uniform
from meshinfer.errors import StageFailed


def logits(*rows: list[float]) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    return np.array(rows, np.float32)


def tokens(row: list[float], sampling: Sampling, positions: range) -> list[int]:
    repeated = np.repeat(logits(row), len(positions), axis=0)
    return [one.token for one in draw(repeated, [(sampling, position) for position in positions])]


@pytest.mark.parametrize(
    ("row", "token"),
    [
        ([0.0, 3.0, 1.0], 1),
        ([2.0, 1.0, 2.0], 0),
        ([-5.0, -9.0, -5.0], 0),
        ([7.0, 7.0, 7.0], 0),
        ([-1e30, 1e30, 1e30], 1),
    ],
)
def test_greedy_takes_the_highest_and_the_lowest_id_of_equals(row: list[float], token: int) -> None:
    assert draw(logits(row), [(GREEDY, 5)])[0].token == token


def test_the_log_probability_is_untempered() -> None:
    row = [math.log(1), math.log(2), math.log(5)]
    greedy = draw(logits(row), [(GREEDY, 0)])[0]
    assert greedy.logprob == pytest.approx(math.log(5 / 8), abs=1e-6)
    for position in range(20):
        one = draw(logits(row), [(Sampling(temperature=3.0, top_k=2, seed=1), position)])[0]
        assert one.logprob == pytest.approx(row[one.token] - math.log(8), abs=1e-6)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(top_k=1), Sampling(top_p=0.5)])
def test_logits_that_are_not_finite_fail_the_stage(
    value: float, place: int, sampling: Sampling
) -> None:
    row = [1.0, 2.0, 3.0]
    row[place] = value
    with pytest.raises(StageFailed, match="not finite"):
        draw(logits([0.0, 0.0, 0.0], row), [(sampling, 0), (sampling, 1)])


def test_rows_and_logits_must_match() -> None:
    with pytest.raises(StageFailed, match="1 rows"):
        draw(logits([1.0]), [])


def test_no_rows_draw_nothing() -> None:
    assert draw(np.empty((0, 5), np.float32), []) == ()


@pytest.mark.parametrize(
    ("sampling", "allowed"),
    [
        (Sampling(top_k=1), {1}),
        (Sampling(top_k=2), {1, 3}),
        (Sampling(top_k=3), {1, 3, 0}),  # 0 and 2 are equal: the lower id stays
        (Sampling(top_k=50), {0, 1, 2, 3}),
        (Sampling(top_p=0.0), {1}),
        (Sampling(top_p=0.45), {1}),
        (Sampling(top_p=0.55), {1, 3}),
        (Sampling(top_p=0.85), {1, 3, 0}),
        (Sampling(top_p=1.0), {0, 1, 2, 3}),
        (Sampling(top_k=2, top_p=0.6), {1}),  # 0.5 of the 0.8 that top_k left is 0.625
        (Sampling(temperature=1e-6), {1}),
        (Sampling(temperature=1e-300), {1}),
    ],
)
def test_only_the_allowed_tokens_are_drawn(sampling: Sampling, allowed: set[int]) -> None:
    row = [math.log(0.1), math.log(0.5), math.log(0.1), math.log(0.3)]
    assert set(tokens(row, sampling, range(600))) == allowed


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_the_draws_follow_the_tempered_distribution(temperature: float) -> None:
    probabilities = np.array([0.05, 0.6, 0.15, 0.2])
    expected = probabilities ** (1 / temperature)
    expected /= expected.sum()
    count = 4000
    drawn = tokens(np.log(probabilities).tolist(), Sampling(temperature, seed=7), range(count))
    share = np.bincount(drawn, minlength=4) / count
    # Five standard deviations of a binomial share: fixed seed, so this never flickers.
    assert np.all(np.abs(share - expected) < 5 * np.sqrt(expected * (1 - expected) / count))


def test_a_draw_depends_on_seed_and_position_only() -> None:
    row = [0.1 * token for token in range(50)]
    other = [5.0 - 0.1 * token for token in range(50)]
    sampling = Sampling(temperature=0.9, top_k=40, top_p=0.95, seed=2**64 - 1)
    alone = [draw(logits(row), [(sampling, position)])[0] for position in range(30)]
    together = draw(
        logits(*([other, row] * 30)),
        [
            (Sampling(seed=3), 0) if place % 2 == 0 else (sampling, place // 2)
            for place in range(60)
        ],
    )
    assert list(together[1::2]) == alone
    assert tokens(row, Sampling(seed=1), range(30)) != tokens(row, Sampling(seed=2), range(30))
    assert len({one.token for one in alone}) > 5


def test_the_numbers_behind_the_draws_never_change() -> None:
    """A node of another version must continue a request with the same draws. The numbers are those
    of Philox4x64-10, checked against a second implementation."""
    assert [uniform(0, 0), uniform(0, 1), uniform(2**64 - 1, 4095)] == [
        0.011546754286331562,
        0.5023796042735054,
        0.3216202470970606,
    ]


@given(
    row=st.lists(st.floats(-80, 80, width=32), min_size=1, max_size=40),
    temperature=st.floats(0.01, 10),
    top_p=st.floats(0, 1),
    top_k=st.integers(0, 45),
    position=st.integers(0, 2**31),
)
def test_every_draw_is_a_token_that_greedy_would_not_forbid(
    row: list[float], temperature: float, top_p: float, top_k: int, position: int
) -> None:
    one = draw(logits(row), [(Sampling(temperature, top_p, top_k, 11), position)])[0]
    assert 0 <= one.token < len(row)
    assert one.logprob <= 1e-5
    if top_k:
        assert sum(value > row[one.token] for value in np.float32(row)) < top_k
