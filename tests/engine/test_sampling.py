"""Draws: greedy, tempered, cut to k or p; the same at any place and in any company."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshinfer.core.request import GREEDY, Sampling
from meshinfer.core.step import Sampled
from meshinfer.engine.logprobs import with_logprobs
from meshinfer.engine.penalties import add_bias, forbid, penalise
from meshinfer.engine.sampling import DrawRow, draw, uniform
from meshinfer.errors import StageFailed


def logits(*rows: list[float]) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    return np.array(rows, np.float32)


def tokens(row: list[float], sampling: Sampling, positions: range) -> list[int]:
    repeated = np.repeat(logits(row), len(positions), axis=0)
    return [
        one.token for one in draw(repeated, [DrawRow(sampling, position) for position in positions])
    ]


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
    assert draw(logits(row), [DrawRow(GREEDY, 5)])[0].token == token


def test_the_log_probability_is_untempered() -> None:
    row = [math.log(1), math.log(2), math.log(5)]
    greedy = draw(logits(row), [DrawRow(Sampling(0.0, logprobs=0), 0)])[0]
    assert greedy.logprob == pytest.approx(math.log(5 / 8), abs=1e-6)
    for position in range(20):
        sampling = Sampling(temperature=3.0, top_k=2, seed=1, logprobs=3)
        one = draw(logits(row), [DrawRow(sampling, position)])[0]
        assert [token for token, _ in one.alternatives] == [2, 1, 0]
        assert one.logprob == pytest.approx(row[one.token] - math.log(8), abs=1e-6)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize(
    "sampling", [GREEDY, Sampling(top_k=1), Sampling(top_p=0.5), Sampling(0.0, logprobs=1)]
)
def test_logits_that_are_not_finite_fail_the_stage(
    value: float, place: int, sampling: Sampling
) -> None:
    row = [1.0, 2.0, 3.0]
    row[place] = value
    with pytest.raises(StageFailed, match="not finite"):
        draw(logits([0.0, 0.0, 0.0], row), [DrawRow(sampling, 0), DrawRow(sampling, 1)])


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(seed=4), Sampling(top_k=2, logprobs=2)])
def test_a_row_of_nothing_but_minus_infinity_fails_and_one_of_some_does_not(
    sampling: Sampling,
) -> None:
    some = logits([-math.inf, 1.0, -math.inf, 0.0])
    assert draw(some, [DrawRow(sampling, 3)])[0].token in (1, 3)
    with pytest.raises(StageFailed, match="not finite"):
        draw(logits([-math.inf] * 4), [DrawRow(sampling, 3)])


@pytest.mark.parametrize("temperature", [0.0, 1e-9, 0.3])
def test_logits_near_the_end_of_float32_are_only_unlikely(temperature: float) -> None:
    row = logits([-3.4e38, 5.0, -3.4e38])
    assert draw(row, [DrawRow(Sampling(temperature, min_p=0.1), 1)])[0].token == 1


def test_a_mask_hides_what_is_not_finite_and_fails_when_nothing_is_left() -> None:
    row = logits([1.0, math.nan, 3.0, 2.0])
    assert draw(row, [DrawRow(GREEDY, 0, mask=bytes([0b1001, 0, 0, 0]))])[0].token == 3
    for mask, cause in ((0b0010, "not finite"), (0, "allows no token")):
        with pytest.raises(StageFailed, match=cause):
            draw(row, [DrawRow(GREEDY, 0, mask=bytes([mask, 0, 0, 0]))])


def test_penalties_without_tokens_are_a_bug() -> None:
    with pytest.raises(StageFailed, match="without its tokens"):
        draw(logits([1.0]), [DrawRow(Sampling(presence_penalty=1.0), 0)])


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
        (Sampling(min_p=0.19), {0, 1, 2, 3}),
        (Sampling(min_p=0.3), {1, 3}),
        (Sampling(top_p=0.85, min_p=0.3), {1, 3}),
        (Sampling(min_p=1.0), {1}),
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
    alone = [draw(logits(row), [DrawRow(sampling, position)])[0] for position in range(30)]
    together = draw(
        logits(*([other, row] * 30)),
        [
            DrawRow(Sampling(seed=3), 0) if place % 2 == 0 else DrawRow(sampling, place // 2)
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
    sampling = Sampling(temperature, top_p, top_k, 11, logprobs=0)
    one = draw(logits(row), [DrawRow(sampling, position)])[0]
    assert 0 <= one.token < len(row)
    assert one.logprob <= 1e-5
    if top_k:
        assert sum(value > row[one.token] for value in np.array(row, np.float32)) < top_k


SIZE = 70
SAMPLINGS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.0, 0.6, 1.0]),
    top_p=st.sampled_from([0.5, 0.9, 1.0]),
    top_k=st.sampled_from([0, 1, 9]),
    seed=st.integers(0, 2**64 - 1),
    min_p=st.sampled_from([0.0, 0.05]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.4]),
    presence_penalty=st.sampled_from([0.0, 0.0, 0.8]),
    frequency_penalty=st.sampled_from([0.0, 0.0, -0.4]),
    logprobs=st.sampled_from([None, None, 0, 3]),
)
DRAW_ROWS = st.builds(
    DrawRow,
    sampling=SAMPLINGS,
    position=st.integers(0, 1 << 14),
    tokens=st.lists(st.integers(0, SIZE - 1), max_size=20).map(lambda ids: np.array(ids, np.int32)),
    prompt_length=st.integers(0, 20),
    bias=st.sampled_from([(), (), ((3, 6.0), (69, -2.5))]),
    mask=st.sampled_from([b"", b"", b"\x0f\x00\xf0" * 4, b"\x00" * 8 + b"\x21\0\0\0"]),
)


def reference(row: np.ndarray[tuple[int], np.dtype[np.float32]], one: DrawRow) -> Sampled:
    """What `draw` promises, said without a thought for speed: one row, everything sorted."""
    sampling, values = one.sampling, row.copy()
    assert one.tokens is not None
    add_bias(values, one.bias)
    penalise(values, sampling, one.tokens, one.prompt_length)
    if one.mask:
        forbid(values, one.mask)
    ranked = sorted(range(SIZE), key=lambda token: (-values[token], token))
    token = ranked[0]
    if sampling.temperature > 0:
        if sampling.top_k:
            ranked = ranked[: sampling.top_k]
        weights = np.exp((values - values[token]) / sampling.temperature)
        total, held = float(weights[ranked].sum(dtype=np.float64)), 0.0
        kept: list[int] = []
        for place in ranked:
            if not kept or sampling.top_p == 1 or held < sampling.top_p * total:
                kept.append(place)
            held += float(weights[place])
        kept = sorted(place for place in kept if weights[place] >= np.float32(sampling.min_p))
        ends = np.cumsum(weights[kept], dtype=np.float64)
        goal = uniform(sampling.seed, one.position) * ends[-1]
        token = kept[int(np.searchsorted(ends, goal, side="right"))]
    if sampling.logprobs is None:
        return Sampled(token)
    return with_logprobs(row, float(row.max()), token, sampling.logprobs)


@settings(max_examples=40)
@given(st.lists(DRAW_ROWS, min_size=1, max_size=8), st.integers(0, 2**32))
def test_a_row_is_drawn_as_if_it_were_alone_and_the_logits_are_only_read(
    rows: list[DrawRow], seed: int
) -> None:
    all_logits = np.random.default_rng(seed).standard_normal((len(rows), SIZE)).astype(np.float32)
    all_logits.flags.writeable = False
    together = draw(all_logits, rows)
    alone = tuple(draw(all_logits[place : place + 1], [one])[0] for place, one in enumerate(rows))
    assert together == alone
    assert together == tuple(map(reference, all_logits, rows))


def test_a_draw_from_a_large_vocabulary_follows_its_distribution() -> None:
    """Sums of blocks lead to the same place as one running sum."""
    row = np.random.default_rng(5).standard_normal(5000).astype(np.float32)
    weights = np.exp(row - row.max())
    ends = weights.cumsum(dtype=np.float64)
    drawn = tokens(row.tolist(), Sampling(seed=3), range(300))
    expected = np.searchsorted(
        ends, [uniform(3, place) * ends[-1] for place in range(300)], "right"
    )
    assert drawn == expected.tolist()
