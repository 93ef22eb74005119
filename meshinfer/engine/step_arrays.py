"""A step as the arrays that engines compute with. Pure; called by the paged and the toy stage."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshinfer.core.step import Step
from meshinfer.engine.blocks import Chain
from meshinfer.errors import StageFailed

_BUG = "This is a bug: report it."


@dataclass(frozen=True, slots=True)
class PagedArrays:
    """Inputs of OpenVINO's PagedAttention, named as in its source (paged_attention.hpp).

    n rows, t tokens, b blocks over all rows (a shared block counts once for each row).
    """

    position_ids: NDArray[np.int64]  # [t]
    past_lens: NDArray[np.int32]  # [n] tokens cached before the step
    subsequence_begins: NDArray[np.int32]  # [n + 1] prefix sums of the rows' token counts
    block_indices: NDArray[np.int32]  # [b]
    block_indices_begins: NDArray[np.int32]  # [n + 1] prefix sums of the rows' block counts
    max_context_len: NDArray[np.int32]  # [] longest sequence, its new tokens included


def token_count(step: Step) -> int:
    """New tokens of all rows. Raises StageFailed when the step contradicts itself: a stage would
    read outside of its arrays, and a device does that without a word."""
    count = 0
    for row in step.rows:
        if not (0 <= row.logits <= row.count and row.position >= 0):
            raise StageFailed(f"A row of sequence {row.sequence} is malformed.", _BUG)
        count += row.count
    if len(step.tokens) != count:
        raise StageFailed(f"A step of {count} tokens came with {len(step.tokens)} ids.", _BUG)
    return count


def paged_arrays(step: Step, chains: tuple[Chain, ...]) -> PagedArrays:
    """`chains` belong to the rows of the step, which has at least one."""
    rows = step.rows
    return PagedArrays(
        position_ids=np.concatenate(
            [np.arange(row.position, row.position + row.count, dtype=np.int64) for row in rows]
        ),
        past_lens=np.array([row.position for row in rows], np.int32),
        subsequence_begins=_prefix_sums([row.count for row in rows]),
        block_indices=np.concatenate([np.array(chain.blocks, np.int32) for chain in chains]),
        block_indices_begins=_prefix_sums([len(chain.blocks) for chain in chains]),
        max_context_len=np.array(max(chain.length for chain in chains), np.int32),
    )


def wanted_tokens(step: Step) -> NDArray[np.int64]:
    """Places, among the step's tokens, of those whose logits are wanted; in row order."""
    places: list[int] = []
    end = 0
    for row in step.rows:
        end += row.count
        places.extend(range(end - row.logits, end))
    return np.array(places, np.int64)


def _prefix_sums(counts: list[int]) -> NDArray[np.int32]:
    sums = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=sums[1:])
    return sums
