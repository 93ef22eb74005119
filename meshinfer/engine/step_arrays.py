"""A step as the arrays that engines compute with. Pure; called by the paged and the toy stage."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from meshinfer.core.step import Row, Step, is_tree, moves_to_front
from meshinfer.engine.blocks import Chain
from meshinfer.engine.trees import positions, visible
from meshinfer.errors import StageFailed

_BUG = "This is a bug: report it."


@dataclass(frozen=True, slots=True)
class PagedArrays:
    """Inputs of OpenVINO's PagedAttention, named as in its source (paged_attention.hpp).

    n rows, t tokens, b blocks over all rows (a shared block counts once for each row).
    """

    position_ids: NDArray[np.int64]  # [t] in a token tree by depth
    past_lens: NDArray[np.int32]  # [n] tokens cached before the step
    subsequence_begins: NDArray[np.int32]  # [n + 1] prefix sums of the rows' token counts
    block_indices: NDArray[np.int32]  # [b]
    block_indices_begins: NDArray[np.int32]  # [n + 1] prefix sums of the rows' block counts
    max_context_len: NDArray[np.int32]  # [] longest sequence, its new tokens included
    qq_bias: NDArray[np.uint8]
    """Of each row that is a tree count x count flags, joined: 1 where the token of the line sees
    that of the column. What is cached is seen by all."""
    qq_bias_begins: NDArray[np.int32]
    """[n + 1] prefix sums of the rows' flags; equal neighbours: no tree, each sees all before it.
    Without any tree the same array for every step of n rows."""


def token_count(step: Step) -> int:
    """New tokens of all rows. Raises StageFailed when the step contradicts itself: a stage would
    read outside of its arrays, and a device does that without a word."""
    count = 0
    for row in step.rows:
        if not (0 <= row.logits <= row.count and row.position >= 0 and _is_sound(row)):
            raise StageFailed(f"A row of sequence {row.sequence} is malformed.", _BUG)
        count += row.count
    if len(step.tokens) != count:
        raise StageFailed(f"A step of {count} tokens came with {len(step.tokens)} ids.", _BUG)
    return count


def _is_sound(row: Row) -> bool:
    """Whether its tree is one, whose logits are all wanted, and what it keeps moves towards the
    front of its own cache."""
    if row.parents and not (len(row.parents) == row.count == row.logits and is_tree(row.parents)):
        return False
    return not row.kept or (row.fork_from is None and moves_to_front(row.kept, row.position))


def paged_arrays(step: Step, chains: tuple[Chain, ...]) -> PagedArrays:
    """`chains` belong to the rows of the step, which has at least one."""
    rows = step.rows
    bias, bias_begins = _bias(rows)
    return PagedArrays(
        position_ids=np.concatenate([positions(row) for row in rows]),
        past_lens=np.array([row.position for row in rows], np.int32),
        subsequence_begins=_prefix_sums([row.count for row in rows]),
        block_indices=np.concatenate([np.array(chain.blocks, np.int32) for chain in chains]),
        block_indices_begins=_prefix_sums([len(chain.blocks) for chain in chains]),
        max_context_len=np.array(max(chain.length for chain in chains), np.int32),
        qq_bias=bias,
        qq_bias_begins=bias_begins,
    )


def _bias(rows: tuple[Row, ...]) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """`qq_bias` and `qq_bias_begins` of PagedArrays."""
    trees = [visible(row.parents).ravel() for row in rows if row.parents]
    if not trees:
        return NO_BIAS, no_bias_begins(len(rows))
    return np.concatenate(trees), _prefix_sums([len(row.parents) ** 2 for row in rows])


NO_BIAS = np.empty(0, np.uint8)
NO_BIAS.flags.writeable = False


@lru_cache(maxsize=256)
def no_bias_begins(rows: int) -> NDArray[np.int32]:
    """`qq_bias_begins` of a step without trees, [rows + 1]: read-only, one for equal `rows`."""
    begins = np.zeros(rows + 1, np.int32)
    begins.flags.writeable = False
    return begins


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
