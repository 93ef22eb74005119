"""What is learnt of step times, and what follows from it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshinfer.serve.step_cost import StageCost, StepCost

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def linear(stages: int, fixed_s: float, token_s: float) -> StepCost:
    curve = [(tokens, fixed_s + token_s * tokens) for tokens in SIZES]
    return StepCost(stages, [curve] * stages)


@given(
    st.lists(st.tuples(st.integers(1, 500), st.floats(1e-4, 1.0)), min_size=1, max_size=20),
    st.integers(1, 600),
)
def test_more_tokens_never_seem_cheaper(seen: list[tuple[int, float]], tokens: int) -> None:
    cost = StageCost()
    for count, seconds in seen:
        cost.observe(count, seconds)
    fewer, more = cost.seconds(tokens), cost.seconds(tokens + 1)
    assert fewer is not None
    assert more is not None
    assert 0 < fewer <= more * (1 + 1e-9)


def test_it_learns_from_what_it_sees() -> None:
    cost = StageCost([(1, 0.1), (8, 0.2)])
    for _ in range(50):
        cost.observe(8, 0.4)
    assert cost.seconds(8) == pytest.approx(0.4, rel=0.01)
    assert cost.seconds(1) == pytest.approx(0.1)


def test_nothing_is_known_at_first() -> None:
    cost = StepCost(3)
    assert cost.slowest(5) is None
    assert cost.groups(7) == 3
    assert cost.groups(2) == 2
    assert cost.prompt_chunk(1000, 256) == 63  # of 64, made even
    assert cost.tokens_beside(4, 4, 2.0, 256) == 64


def test_rows_that_cost_nothing_share_a_step() -> None:
    """Where a step takes as long with two rows as with one, two users in turn are slower."""
    assert linear(2, 0.035, 0.0).groups(2) == 1
    assert linear(2, 0.0, 0.035).groups(2) == 2


@pytest.mark.parametrize(("stages", "most", "chunk"), [(1, 256, 256), (2, 256, 64), (4, 256, 32)])
def test_chunks_fill_the_pipeline(stages: int, most: int, chunk: int) -> None:
    found = linear(stages, 0.01, 0.001).prompt_chunk(512, most)
    assert chunk / 2 <= found <= 2 * chunk


def test_what_fits_beside_others() -> None:
    cost = linear(1, 0.04, 0.002)
    tokens = cost.tokens_beside(rows=4, usual_rows=4, stretch=2.0, most=256)
    assert 22 <= tokens <= 24
    assert cost.tokens_beside(4, 4, 1.0, 256) == 0
    assert cost.tokens_beside(4, 4, 100.0, 17) == 17


def test_a_long_context_makes_prompt_tokens_dearer_for_now() -> None:
    cost = linear(1, 0.04, 0.002)
    before = cost.tokens_beside(4, 4, 2.0, 256)
    for _ in range(20):
        cost.observe(4 + 10, [0.048 + 0.06], 0.0, prompt_tokens=10)
    after = cost.tokens_beside(4, 4, 2.0, 256)
    assert after == pytest.approx(before / 3, abs=1)
    assert cost.slowest(14) == pytest.approx(0.04 + 0.002 * 14)
