"""Logits to tokens. Pure: the same row, request and position give the same token anywhere.

The draw at position p uses one number that depends on the request's seed and p only, so that a
request continues elsewhere as if nothing had happened, and no row knows its neighbours.
Called on the last stage, where the logits are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from meshinfer.core.request import Sampling
from meshinfer.core.step import Sampled
from meshinfer.errors import StageFailed

_COLDEST = 1e-6
"""Below it a temperature is as good as greedy, and dividing by it could overflow float32."""


def draw(logits: NDArray[np.float32], rows: Sequence[tuple[Sampling, int]]) -> tuple[Sampled, ...]:
    """One token for each row of `logits` [k, vocabulary].

    `rows` tells for each how to draw and the position that the drawn token will have. Greedy takes
    the lowest id among equals. The log-probability is that of the untempered distribution.
    Raises StageFailed when a logit is not finite or the numbers of rows differ.
    """
    if len(rows) != len(logits):
        raise StageFailed(
            f"{len(logits)} rows of logits came for {len(rows)} tokens to draw.",
            "This is a bug: report it.",
        )
    return tuple(
        _draw_row(row, sampling, position)
        for row, (sampling, position) in zip(logits, rows, strict=True)
    )


def uniform(seed: int, position: int) -> float:
    """The number in [0, 1) that decides the draw at `position`.

    Philox (Salmon et al., SC11) is counter-based: no state travels with a request. Raw 64-bit
    output is used because NumPy keeps that stream stable, unlike Generator's methods.
    """
    raw = np.random.Philox(counter=position, key=seed).random_raw()
    return float(int(raw) >> 11) * 2.0**-53


def _draw_row(row: NDArray[np.float32], sampling: Sampling, position: int) -> Sampled:
    best = int(row.argmax())
    highest = float(row[best])
    # argmax stops at a NaN, so `highest` shows both NaN and +inf; the minimum shows -inf.
    if not (math.isfinite(highest) and math.isfinite(float(row.min()))):
        raise StageFailed(
            "The model's logits are not finite.", "Restart the stage or use another device."
        )
    token = best
    if sampling.temperature > 0:
        token = _draw_tempered(row, highest, sampling, uniform(sampling.seed, position))
    # Summed in float64: a sum of 150 000 float32 would lose three digits. The exponentials stay in
    # float32, which NumPy vectorises.
    total = float(np.exp(row - row[best]).sum(dtype=np.float64))
    return Sampled(token, float(row[token]) - highest - math.log(total))


def _draw_tempered(
    row: NDArray[np.float32], highest: float, sampling: Sampling, chance: float
) -> int:
    tokens = _top_k(row, sampling.top_k)
    chosen = row if tokens is None else row[tokens]
    # float32, which NumPy vectorises; relative to the highest, so the greatest weight is 1.
    weights = np.exp((chosen - row.dtype.type(highest)) / max(sampling.temperature, _COLDEST))
    if sampling.top_p < 1:
        kept = _nucleus(weights, sampling.top_p)
        tokens = kept if tokens is None else tokens[kept]
        weights = weights[kept]
    cumulated = weights.cumsum(dtype=np.float64)
    # In order of token id, not of weight: a last-bit difference between two PCs then moves a
    # border by one bit instead of swapping two tokens.
    place = int(cumulated.searchsorted(chance * cumulated[-1], side="right"))
    if place == len(weights):  # the product was rounded up to the sum itself
        place = int(np.flatnonzero(weights)[-1])
    return place if tokens is None else int(tokens[place])


def _top_k(row: NDArray[np.float32], count: int) -> NDArray[np.intp] | None:
    """Ids of the `count` highest logits, ascending; the lower id wins ties. None: all of them."""
    if not 0 < count < len(row):
        return None
    border = np.partition(row, len(row) - count)[len(row) - count]
    above = np.flatnonzero(row > border)
    tied = np.flatnonzero(row == border)[: count - len(above)]
    return np.sort(np.concatenate([above, tied]))


def _nucleus(weights: NDArray[np.float32], top_p: float) -> NDArray[np.intp]:
    """Places of the smallest set of greatest weights that holds `top_p` of the sum, ascending."""
    total = float(weights.sum(dtype=np.float64))
    # All tokens below this weight together hold less than 1 - top_p: none of them can be in the
    # set, and the sort touches hundreds of tokens instead of the vocabulary.
    candidates = np.flatnonzero(weights >= (1 - top_p) * total / len(weights))
    order = candidates[np.argsort(-weights[candidates], kind="stable")]
    before = weights[order].cumsum(dtype=np.float64) - weights[order]
    kept = max(1, int((before < top_p * total).sum()))
    return np.sort(order[:kept])
