"""Rows become the arrays of PagedAttention."""

from __future__ import annotations

import numpy as np
import pytest

from meshinfer.core.step import Row, Step
from meshinfer.engine.blocks import Chain
from meshinfer.engine.step_arrays import paged_arrays, token_count, wanted_tokens
from meshinfer.errors import StageFailed


def test_a_prefill_row_and_a_decode_row() -> None:
    rows = (Row(1, 0, 3, 0), Row(2, 6, 1, 1))
    arrays = paged_arrays(Step(0, rows, (1, 2, 3, 4)), (Chain(3, (5,)), Chain(7, (2, 9))))
    expected = {
        "position_ids": ([0, 1, 2, 6], np.int64),
        "past_lens": ([0, 6], np.int32),
        "subsequence_begins": ([0, 3, 4], np.int32),
        "block_indices": ([5, 2, 9], np.int32),
        "block_indices_begins": ([0, 1, 3], np.int32),
        "max_context_len": (7, np.int32),
    }
    for name, (values, dtype) in expected.items():
        array = getattr(arrays, name)
        assert array.tolist() == values, name
        assert array.dtype == dtype, name


def test_a_tree_stands_by_depth_and_sees_its_ancestors_only() -> None:
    rows = (Row(1, 4, 4, 4, parents=(-1, 0, 0, 2)), Row(2, 6, 2, 2), Row(3, 9, 1, 1, parents=(-1,)))
    chains = (Chain(8, (5,)), Chain(8, (2,)), Chain(10, (3,)))
    arrays = paged_arrays(Step(0, rows, (0,) * 7), chains)
    assert arrays.position_ids.tolist() == [4, 5, 5, 6, 6, 7, 9]
    assert arrays.past_lens.tolist() == [4, 6, 9]
    tree = [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]]
    assert arrays.qq_bias.tolist() == [*sum(tree, []), 1]
    assert arrays.qq_bias_begins.tolist() == [0, 16, 16, 17]
    assert arrays.qq_bias.dtype == np.uint8
    assert arrays.qq_bias_begins.dtype == np.int32


def test_steps_without_trees_share_their_bias() -> None:
    one = paged_arrays(Step(0, (Row(1, 0, 3, 0),), (1, 2, 3)), (Chain(3, (5,)),))
    other = paged_arrays(Step(1, (Row(2, 6, 1, 1),), (4,)), (Chain(7, (2,)),))
    assert one.qq_bias is other.qq_bias
    assert one.qq_bias_begins is other.qq_bias_begins
    assert (one.qq_bias.tolist(), one.qq_bias_begins.tolist()) == ([], [0, 0])


def test_wanted_tokens_are_the_last_of_each_row() -> None:
    rows = (Row(1, 0, 4, 2), Row(2, 0, 3, 0), Row(3, 9, 1, 1), Row(4, 0, 2, 2))
    assert wanted_tokens(Step(0, rows, (0,) * 10)).tolist() == [2, 3, 7, 8, 9]
    assert wanted_tokens(Step(0, (), ())).tolist() == []


def test_tokens_are_counted() -> None:
    assert token_count(Step(0, (Row(1, 0, 2, 2), Row(2, 5, 1, 0)), (7, 8, 9))) == 3


@pytest.mark.parametrize(
    "row",
    [
        Row(1, 0, 2, 3),
        Row(1, 0, 2, -1),
        Row(1, -1, 2, 1),
        Row(1, 0, -2, 0),
        Row(1, 0, 3, 1),
        Row(1, 0, 2, 2, parents=(-1,)),
        Row(1, 0, 2, 1, parents=(-1, 0)),
        Row(1, 0, 2, 2, parents=(-1, 1)),
        Row(1, 3, 2, 2, kept=(4, 3)),
        Row(1, 3, 2, 2, kept=(1,)),
        Row(1, 3, 2, 2, kept=(4,), fork_from=2),
    ],
)
def test_a_step_that_contradicts_itself_is_refused(row: Row) -> None:
    with pytest.raises(StageFailed):
        token_count(Step(0, (row,), (7, 8)))
