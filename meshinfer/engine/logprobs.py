"""Log-probabilities of a drawn token and of the most likely ones at its place. Pure.

Of the distribution as the model gives it: before temperature, penalties, mask and cuts. Called by
the sampling, for rows that ask: the sum over the vocabulary costs more than a greedy draw.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from meshinfer.core.step import Sampled
from meshinfer.engine.cuts import top_k


def with_logprobs(row: NDArray[np.float32], highest: float, token: int, count: int) -> Sampled:
    """`token` with its log-probability and the `count` most likely tokens, the lower id first among
    equals.

    `row` is the model's own; `highest` is its maximum, and finite. Tokens of probability 0 are no
    alternatives.
    """
    # Summed in float64: a sum of 150 000 float32 would lose three digits. The exponentials stay in
    # float32, which NumPy vectorises.
    total = float(np.exp(row - np.float32(highest)).sum(dtype=np.float64))
    scale = highest + math.log(total)
    alternatives = tuple((one, float(row[one]) - scale) for one in _most_likely(row, count))
    return Sampled(token, float(row[token]) - scale, alternatives)


def _most_likely(row: NDArray[np.float32], count: int) -> list[int]:
    if count <= 0:
        return []
    tokens = top_k(row, count)
    if tokens is None:
        tokens = np.arange(len(row))
    tokens = tokens[row[tokens] > -np.inf]
    ranked: list[int] = tokens[np.argsort(-row[tokens], kind="stable")].tolist()
    return ranked
