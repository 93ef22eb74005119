"""Bias, penalties and masks: each touches the tokens that it is about, and no other."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshinfer.core.request import GREEDY, Sampling
from meshinfer.engine.penalties import add_bias, forbid, needs_tokens, penalise
from meshinfer.errors import StageFailed

SIZE = 37
VALUES = st.lists(st.integers(-80, 80), min_size=SIZE, max_size=SIZE)
TOKENS = st.lists(st.integers(0, SIZE - 1), max_size=60)


def words(allowed: set[int], size: int = SIZE) -> bytes:
    return sum(1 << token for token in allowed).to_bytes(-(-size // 32) * 4, "little")


@given(
    values=VALUES,
    prompt=TOKENS,
    answer=TOKENS,
    repetition=st.sampled_from([0.5, 1.0, 1.3, 2.0]),
    presence=st.sampled_from([-2.0, 0.0, 0.7]),
    frequency=st.sampled_from([-0.3, 0.0, 1.1]),
)
def test_penalties_are_those_of_a_loop_over_the_vocabulary(
    values: list[int],
    prompt: list[int],
    answer: list[int],
    repetition: float,
    presence: float,
    frequency: float,
) -> None:
    row = np.array(values, np.float32) / np.float32(8)
    expected = row.copy()
    f32, counts = np.float32, Counter(answer)
    for token in range(SIZE):
        if token in prompt or token in answer:
            value, penalty = expected[token], f32(repetition)
            expected[token] = value / penalty if value > 0 else value * penalty
        if counts[token]:
            expected[token] -= f32(frequency) * f32(counts[token]) + f32(presence)
    sampling = Sampling(
        repetition_penalty=repetition, presence_penalty=presence, frequency_penalty=frequency
    )
    penalise(row, sampling, np.array([*prompt, *answer], np.int32), len(prompt))
    assert row.tobytes() == expected.tobytes()


def test_a_token_that_is_biased_twice_gets_both() -> None:
    row = np.zeros(4, np.float32)
    add_bias(row, ((1, 2.0), (3, -1.5), (1, 0.5)))
    assert row.tolist() == [0.0, 2.5, 0.0, -1.5]


@given(VALUES, st.sets(st.integers(0, SIZE - 1), min_size=1))
def test_a_mask_forbids_all_but_its_tokens(values: list[int], allowed: set[int]) -> None:
    row = np.array(values, np.float32)
    forbid(row, words(allowed))
    for token, value in enumerate(row):
        assert value == (values[token] if token in allowed else -np.inf)


@pytest.mark.parametrize(
    ("mask", "cause"),
    [
        (words(set()), "no token at all"),
        (words({SIZE + 1}), "no token at all"),  # a bit behind the vocabulary
        (b"\xff" * 4, "4 bytes came for 37 logits, which need 8"),
        (b"\xff" * 12, "12 bytes"),
    ],
)
def test_a_mask_that_cannot_be_used_says_why(mask: bytes, cause: str) -> None:
    with pytest.raises(StageFailed, match=cause):
        forbid(np.zeros(SIZE, np.float32), mask)


@pytest.mark.parametrize("token", [-1, SIZE, 2**31 - 1])
def test_a_token_outside_of_the_vocabulary_is_refused(token: int) -> None:
    row = np.zeros(SIZE, np.float32)
    with pytest.raises(StageFailed, match="not in the vocabulary of 37"):
        add_bias(row, ((token, 1.0),))
    with pytest.raises(StageFailed, match="not in the vocabulary of 37"):
        penalise(row, Sampling(presence_penalty=1.0), np.array([token], np.int32), 0)
    assert not row.any()


@pytest.mark.parametrize(
    ("sampling", "needed"),
    [
        (GREEDY, False),
        (Sampling(temperature=0.7, top_k=3, min_p=0.1, logprobs=5, bias=((1, 2.0),)), False),
        (Sampling(repetition_penalty=1.1), True),
        (Sampling(presence_penalty=-0.5), True),
        (Sampling(frequency_penalty=0.5), True),
    ],
)
def test_only_penalties_need_the_tokens(sampling: Sampling, needed: bool) -> None:
    assert needs_tokens(sampling) is needed
