"""Which of many logits or weights remain: the top k, the nucleus, what is not too unlikely. Pure.

All ids come ascending, and none of these sorts the vocabulary. Called by the sampling.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_FOLDS = 64
"""Rows that a row of logits is folded into: 2 400 columns for a vocabulary of 150 000."""


def top_k(row: NDArray[np.float32], count: int) -> NDArray[np.intp] | None:
    """Ids of the `count` highest logits; the lower id wins ties. None: all of them.

    `row` holds no NaN.
    """
    if not 0 < count < len(row):
        return None
    candidates = np.flatnonzero(row >= _bound(row, count))
    values = row[candidates]
    border = np.partition(values, len(values) - count)[len(values) - count]
    above = candidates[values > border]
    tied = candidates[values == border][: count - len(above)]
    return np.sort(np.concatenate([above, tied]))


def nucleus(weights: NDArray[np.float32], top_p: float) -> NDArray[np.intp]:
    """Places of the smallest set of greatest weights that holds `top_p` of the sum."""
    total = float(weights.sum(dtype=np.float64))
    # All tokens below this weight together hold less than 1 - top_p: none of them can be in the
    # set, and the sort touches hundreds of tokens instead of the vocabulary.
    candidates = np.flatnonzero(weights >= (1 - top_p) * total / len(weights))
    order = candidates[np.argsort(-weights[candidates], kind="stable")]
    before = weights[order].cumsum(dtype=np.float64) - weights[order]
    kept = max(1, int((before < top_p * total).sum()))
    return np.sort(order[:kept])


def at_least(weights: NDArray[np.float32], min_p: float) -> NDArray[np.intp]:
    """Places of weights that are `min_p` of the greatest or more. The greatest always stays."""
    return np.flatnonzero(weights >= weights.max() * np.float32(min(min_p, 1.0)))


def _bound(row: NDArray[np.float32], count: int) -> float:
    """A value that at least `count` logits reach, and hardly more than that.

    The `count`-th greatest of the columns' maxima: each stands for a logit of its own. Sixty-four
    times fewer numbers to partition than in the row.
    """
    columns = len(row) // _FOLDS
    if columns <= count:
        return -np.inf
    maxima = row[: columns * _FOLDS].reshape(_FOLDS, columns).max(axis=0)
    return float(np.partition(maxima, columns - count)[columns - count])
