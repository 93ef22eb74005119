"""Sizes of ranges of units."""

from __future__ import annotations

import pytest

from meshinfer.core.ids import Digest, ModelId
from meshinfer.core.model import (
    ATTENTION_BYTES,
    ModelShape,
    SharedBytes,
    Unit,
    UnitKind,
    UnitRange,
)

ATTENTION = UnitKind.ATTENTION
SHAPE = ModelShape(
    model=ModelId("m"),
    digest=Digest("d"),
    units=(
        Unit(UnitKind.EMBEDDING, 0, 100, 0, 40),
        Unit(ATTENTION, 0, 10, 8, 56),
        Unit(ATTENTION, 1, 10, 8, 56, (SharedBytes(1, 3, 8),)),
        Unit(ATTENTION, 2, 10, 8, 40, (SharedBytes(2, 3, 8),)),
        Unit(UnitKind.HEAD, 3, 105, 0, 4000, (SharedBytes(0, 100, 0),)),
    ),
    layers=3,
    hidden_size=10,
    vocabulary_size=1000,
    context_length=64,
)


@pytest.mark.parametrize(
    ("first", "end", "weights", "cache"),
    [
        (0, 5, 129, 8),  # the matrix once, and of the constants of three layers the common part
        (0, 4, 124, 8),
        (1, 5, 129, 8),
        (1, 2, 10, 8),
        (2, 3, 10, 8),  # what it has in common lies outside
        (2, 4, 17, 8),
        (4, 5, 105, 0),
    ],
)
def test_what_units_have_in_common_counts_once_in_a_range(
    first: int, end: int, weights: int, cache: int
) -> None:
    part = UnitRange(first, end)
    assert SHAPE.weight_bytes(part) == weights
    assert SHAPE.cache_bytes_per_token(part) == cache


def test_a_stage_takes_what_the_unit_before_gives() -> None:
    assert [SHAPE.input_width(UnitRange(first, 5)) for first in range(5)] == [0, 10, 14, 14, 10]


def test_a_step_reads_the_head_but_not_the_embedding_and_pays_for_attention() -> None:
    """Also where the head shares the matrix of the embedding, and where no kind is known."""
    assert [unit.step_bytes for unit in SHAPE.units] == [
        0,
        10 + ATTENTION_BYTES,
        10 + ATTENTION_BYTES,
        10 + ATTENTION_BYTES,
        105,
    ]
    assert Unit(UnitKind.FEED_FORWARD, 0, 10, 0, 40).step_bytes == 10
    assert Unit(UnitKind.BLOCK, 0, 10, 8, 40).step_bytes == 10 + ATTENTION_BYTES
