"""Steps in fixed shapes: every token is computed by the same kernels, whatever its company.

A matrix product with one row and one with eight add up in another order, and so do the attention of
one token and of a chunk: the last bits differ, and sooner or later a near tie falls otherwise. In
deterministic mode a stage therefore computes always `WIDTH` tokens at a time, each as a sequence of
its own that reads the blocks of the one it belongs to; places that are left over compute a token
of nobody into a block of nobody. A token tree has no place in this: a sequence of its own sees all
that is cached before it. Pure; called by the paged stage.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshinfer.core.step import Step
from meshinfer.engine.blocks import Chain
from meshinfer.engine.step_arrays import NO_BIAS, PagedArrays, no_bias_begins

WIDTH = 8
"""Tokens at a time: one user's step takes about 1.5 times as long as in the fast mode (105 against
70 ms, 1.5B on one core), and a prompt is computed in pieces of eight."""


@dataclass(frozen=True, slots=True)
class Slice:
    """`WIDTH` places of one computation; the first `count` hold the step's tokens from `first`."""

    first: int
    count: int
    arrays: PagedArrays


def slices(
    step: Step, chains: tuple[Chain, ...], block_size: int, spare_block: int
) -> Iterator[Slice]:
    """The tokens of `step`, in order. `spare_block` is where places that are left over write."""
    places = [
        (row.position + offset, chain.blocks[: -(-(row.position + offset + 1) // block_size)])
        for row, chain in zip(step.rows, chains, strict=True)
        for offset in range(row.count)
    ]
    for first in range(0, len(places), WIDTH):
        part = places[first : first + WIDTH]
        count = len(part)
        part += [(0, (spare_block,))] * (WIDTH - count)
        yield Slice(first, count, _arrays(part))


def _arrays(places: list[tuple[int, tuple[int, ...]]]) -> PagedArrays:
    positions = np.array([position for position, _ in places], np.int64)
    lengths = [len(blocks) for _, blocks in places]
    return PagedArrays(
        position_ids=positions,
        past_lens=positions.astype(np.int32),
        subsequence_begins=np.arange(len(places) + 1, dtype=np.int32),
        block_indices=np.concatenate([np.array(blocks, np.int32) for _, blocks in places]),
        block_indices_begins=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
        max_context_len=np.array(int(positions.max()) + 1, np.int32),
        qq_bias=NO_BIAS,
        qq_bias_begins=no_bias_begins(len(places)),
    )


def padded(values: NDArray[np.generic], part: Slice) -> NDArray[np.generic]:
    """The tokens of `part` out of ids [tokens] or activations [tokens, width]; zeros behind."""
    shape = (WIDTH, *values.shape[1:])
    result = np.zeros(shape, values.dtype)
    result[: part.count] = values[part.first : part.first + part.count]
    return result
