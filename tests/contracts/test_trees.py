"""Token trees, on every engine that takes them: a branch is what a text of its own would be."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from meshinfer.core.model import UnitRange
from meshinfer.core.step import Row, Step
from meshinfer.engine.paged import PagedStage, StageOptions
from meshinfer.engine.stage import Stage
from meshinfer.engine.trees import path
from meshinfer.errors import CacheLost, StageFailed
from meshinfer.weights.cut import cut
from tests.contracts.test_stage import (
    OTHER,
    TEXT,
    UNITS,
    Bench,
    Part,
    alone,
    benches,
    run,
    same,
    tiny_xml,
)

__all__ = ["tiny_xml"]  # the fixture

PARENTS = (-1, 0, 1, 0, 3, 3, 1)
TREE = [50, 51, 52, 53, 54, 55, 56]


def paged(xml: Path, units: UnitRange, cache_tokens: int) -> Stage:
    options = StageOptions(threads=1, cache_tokens=cache_tokens, dynamic_quantization_group_size=0)
    return PagedStage.load(cut(xml, units) if len(units) < UNITS else xml, options)


@pytest.fixture(
    params=["toy", pytest.param("paged", marks=[pytest.mark.openvino, pytest.mark.slow])]
)
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    yield from benches(request, paged)


def tree_step(
    sequence: int,
    position: int,
    tokens: list[int],
    parents: tuple[int, ...],
    kept: tuple[int, ...] = (),
    *beside: Part,
) -> Step:
    count = len(tokens)
    rows = [Row(sequence, position, count, count, parents=parents, kept=kept)]
    rows += [Row(one.sequence, one.position, len(one.tokens), one.logits) for one in beside]
    return Step(0, tuple(rows), (*tokens, *(token for one in beside for token in one.tokens)))


def forward(stage: Stage, step: Step) -> NDArray[np.float32]:
    return np.array(stage.forward(step, None))


def random_tree(chance: random.Random, count: int) -> tuple[int, ...]:
    return (-1, *(chance.randrange(place) for place in range(1, count)))


@pytest.mark.parametrize("seed", range(4))
def test_every_branch_equals_its_text(bench: Bench, seed: int) -> None:
    chance = random.Random(seed)
    count = chance.randint(2, 14)
    parents = random_tree(chance, count)
    tokens = [chance.randrange(100) for _ in range(count)]
    stage = bench.stage()
    assert stage.shape.trees
    run(stage, Part(1, 0, TEXT[:13]), Part(2, 0, OTHER[:20]))
    beside = Part(2, 20, OTHER[20:21])
    logits = forward(stage, tree_step(1, 13, tokens, parents, (), beside))
    assert stage.cached(1) == 13 + count
    for place in range(count):
        text = [*TEXT[:13], *(tokens[one] for one in path(parents, place))]
        same(bench, logits[place : place + 1], alone(bench, text))
    same(bench, logits[count:], alone(bench, OTHER[:21]))


@pytest.mark.parametrize("start", [5, 12, 30, 31])
def test_an_accepted_branch_moves_together_and_goes_on(bench: Bench, start: int) -> None:
    """Also over the border of a block, and with another tree behind it."""
    text = (TEXT * 2)[:start]
    stage = bench.stage()
    run(stage, Part(1, 0, text))
    forward(stage, tree_step(1, start, TREE, PARENTS))
    branch = [50, 53, 55]  # places 0, 3, 5: the last two move
    again = tree_step(1, start + 3, [60, 61, 62], (-1, 0, 0), (start + 3, start + 5))
    logits = forward(stage, again)
    assert stage.cached(1) == start + 6
    for place, tail in enumerate(([60], [60, 61], [60, 62])):
        same(bench, logits[place : place + 1], alone(bench, [*text, *branch, *tail]))
    after = Step(0, (Row(1, start + 5, 1, 1, kept=(start + 5,)),), (70,))
    same(bench, forward(stage, after), alone(bench, [*text, *branch, 60, 62, 70]))


def test_what_moves_leaves_a_shared_block_as_it_was(bench: Bench) -> None:
    stage = bench.stage()
    run(stage, Part(1, 0, TEXT[:10]))
    forward(stage, tree_step(1, 10, TREE, PARENTS))
    fork = Step(0, (Row(2, 14, 1, 1, fork_from=1),), (80,))
    before = forward(stage, fork)
    logits = forward(stage, tree_step(1, 12, [60], (-1,), (10, 13)))
    same(bench, logits, alone(bench, [*TEXT[:10], 50, 53, 60]))
    again = forward(stage, Step(0, (Row(2, 14, 1, 1),), (80,)))
    np.testing.assert_array_equal(again, before)


def test_a_refused_step_moves_nothing(bench: Bench) -> None:
    stage = bench.stage()
    run(stage, Part(1, 0, TEXT[:10]))
    forward(stage, tree_step(1, 10, TREE, PARENTS))
    lost = (Row(1, 12, 1, 1, kept=(10, 13)), Row(9, 5, 1, 1))
    with pytest.raises(CacheLost) as caught:
        forward(stage, Step(0, lost, (60, 1)))
    assert caught.value.sequences == (9,)
    beyond = Step(0, (Row(1, 12, 1, 1, kept=(10, 17)),), (60,))
    with pytest.raises(CacheLost):
        forward(stage, beyond)
    logits = forward(stage, Step(0, (Row(1, 12, 1, 1, kept=(10, 13)),), (60,)))
    same(bench, logits, alone(bench, [*TEXT[:10], 50, 53, 60]))


@pytest.mark.parametrize(
    "row",
    [
        Row(1, 4, 3, 3, parents=(-1, 0)),
        Row(1, 4, 3, 2, parents=(-1, 0, 0)),
        Row(1, 4, 3, 3, parents=(-1, 1, 0)),
        Row(1, 4, 3, 3, parents=(0, 0, 0)),
        Row(1, 4, 3, 3, parents=(-1, -1, 0)),
        Row(1, 4, 3, 3, kept=(3, 2)),
        Row(1, 4, 3, 3, kept=(0, 2, 3, 5, 6)),
        Row(1, 1, 3, 3, kept=(1, 2)),
        Row(1, 4, 3, 3, kept=(5,), fork_from=2),
    ],
)
def test_what_is_no_tree_is_refused(bench: Bench, row: Row) -> None:
    stage = bench.stage()
    run(stage, Part(1, 0, TEXT[:8]), Part(2, 0, TEXT[:8]))
    with pytest.raises(StageFailed):
        forward(stage, Step(0, (row,), (1, 2, 3)))
    assert stage.cached(1) == 8


@pytest.mark.openvino
@pytest.mark.slow
def test_a_deterministic_stage_has_no_trees(tiny_xml: Path) -> None:  # noqa: F811
    options = StageOptions(threads=1, cache_tokens=64, deterministic=True)
    stage = PagedStage.load(tiny_xml, options)
    assert not stage.shape.trees
    with pytest.raises(StageFailed, match="tree"):
        forward(stage, tree_step(1, 0, TREE, PARENTS))
    stage.close()
