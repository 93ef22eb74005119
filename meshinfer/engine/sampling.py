"""Logits to tokens. Pure: the same row, request and position give the same token anywhere.

The draw at position p uses one number that depends on the request's seed and p only, so that a
request continues elsewhere as if nothing had happened, and no row knows its neighbours.
Called on the last stage, where the logits are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshinfer.core.request import Sampling
from meshinfer.core.step import Sampled
from meshinfer.engine.cuts import at_least, nucleus, top_k
from meshinfer.engine.logprobs import with_logprobs
from meshinfer.engine.penalties import add_bias, forbid, needs_tokens, penalise
from meshinfer.errors import StageFailed

_COLDEST = 1e-6
"""Below it a temperature is as good as greedy, and dividing by it could overflow float32."""

_BLOCK = 1024
"""Weights that are summed before one of them is looked for: a running sum over a vocabulary takes
three times as long as the exponentials, sums of blocks a tenth."""


@dataclass(frozen=True, slots=True)
class DrawRow:
    """How one row of logits becomes a token."""

    sampling: Sampling  # its `bias` is not looked at: `bias` below is
    position: int  # that the drawn token will have
    tokens: NDArray[np.int32] | None = None  # all before it, prompt included; None: not needed
    prompt_length: int = 0  # of them
    bias: tuple[tuple[int, float], ...] = ()  # (token, added to its logit)
    mask: bytes = b""  # bit t (little endian) says whether token t is allowed; empty: all


def draw(logits: NDArray[np.float32], rows: Sequence[DrawRow]) -> tuple[Sampled, ...]:
    """One token for each row of `logits` [k, vocabulary], which are only read.

    In this order (as vLLM): bias, repetition penalty, frequency and presence penalties, mask; then
    the highest logit (the lowest id among equals) at temperature 0, else temperature, top-k, top-p,
    min-p and the draw. Log-probabilities are computed for rows that ask, and are 0 otherwise.
    Raises StageFailed: a row's highest logit is not finite, a mask allows nothing, a row names
    unknown tokens, or the numbers of rows differ.
    """
    if len(rows) != len(logits):
        raise StageFailed(
            f"{len(logits)} rows of logits came for {len(rows)} tokens to draw.",
            "This is a bug: report it.",
        )
    # One pass over all rows: that is all that plain greedy rows need.
    best = logits.argmax(axis=1)
    highest = logits[np.arange(len(rows)), best].tolist()
    return tuple(
        Sampled(token)
        if row.sampling.temperature <= 0 and _is_plain(row) and math.isfinite(value)
        else _draw_row(raw, row, token, value)
        for raw, row, token, value in zip(logits, rows, best.tolist(), highest, strict=True)
    )


def uniform(seed: int, position: int) -> float:
    """The number in [0, 1) that decides the draw at `position`.

    Philox (Salmon et al., SC11) is counter-based: no state travels with a request. Raw 64-bit
    output is used because NumPy keeps that stream stable, unlike Generator's methods.
    """
    raw = np.random.Philox(counter=position, key=seed).random_raw()
    return float(int(raw) >> 11) * 2.0**-53


def _is_plain(row: DrawRow) -> bool:
    return row.sampling.logprobs is None and not _is_changed(row)


def _is_changed(row: DrawRow) -> bool:
    return bool(row.bias or row.mask) or needs_tokens(row.sampling)


def _draw_row(raw: NDArray[np.float32], row: DrawRow, best: int, highest: float) -> Sampled:
    """`best` is the place of `highest`, the maximum of `raw`."""
    sampling = row.sampling
    if sampling.logprobs is not None:
        _check_finite(highest)
    values, token, peak = raw, best, highest
    if _is_changed(row):
        values = _changed(raw, row)
        token = int(values.argmax())
        peak = float(values[token])
    # argmax stops at a NaN, so this shows both NaN and +inf; -inf is the maximum of nothing else.
    _check_finite(peak)
    if sampling.temperature > 0:
        token = _draw_tempered(values, peak, sampling, uniform(sampling.seed, row.position))
    if sampling.logprobs is None:
        return Sampled(token)
    return with_logprobs(raw, highest, token, sampling.logprobs)


def _check_finite(highest: float) -> None:
    if not math.isfinite(highest):
        raise StageFailed(
            "The model's logits are not finite.", "Restart the stage or use another device."
        )


def _changed(raw: NDArray[np.float32], row: DrawRow) -> NDArray[np.float32]:
    """A copy of `raw` with the row's bias, penalties and mask."""
    values = raw.copy()
    if row.bias:
        add_bias(values, row.bias)
    if needs_tokens(row.sampling):
        if row.tokens is None:
            raise StageFailed(
                "A row with penalties came without its tokens.", "This is a bug: report it."
            )
        penalise(values, row.sampling, row.tokens, row.prompt_length)
    if row.mask:
        forbid(values, row.mask)
    return values


def _draw_tempered(
    row: NDArray[np.float32], highest: float, sampling: Sampling, chance: float
) -> int:
    tokens = top_k(row, sampling.top_k)
    chosen = row if tokens is None else row[tokens]
    # float32, which NumPy vectorises; relative to the highest, so the greatest weight is 1. A logit
    # near -3e38, as models have for unused tokens, may become -inf: its weight is 0 either way.
    with np.errstate(over="ignore"):
        weights = np.exp((chosen - np.float32(highest)) / max(sampling.temperature, _COLDEST))
    if sampling.top_p < 1:
        tokens, weights = _kept(nucleus(weights, sampling.top_p), tokens, weights)
    if sampling.min_p > 0:
        tokens, weights = _kept(at_least(weights, sampling.min_p), tokens, weights)
    place = _pick(weights, chance)
    return place if tokens is None else int(tokens[place])


def _kept(
    places: NDArray[np.intp], tokens: NDArray[np.intp] | None, weights: NDArray[np.float32]
) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
    return places if tokens is None else tokens[places], weights[places]


def _pick(weights: NDArray[np.float32], chance: float) -> int:
    """The place where the running sum of `weights` passes `chance` of the whole.

    In order of token id, not of weight: a last-bit difference between two PCs then moves a border
    by one bit instead of swapping two tokens.
    """
    sums = np.add.reduceat(weights, np.arange(0, len(weights), _BLOCK), dtype=np.float64)
    ends = sums.cumsum()
    goal = chance * ends[-1]
    block = _first_beyond(ends, goal, sums)
    first = block * _BLOCK
    inside = weights[first : first + _BLOCK]
    before = ends[block] - sums[block]
    return first + _first_beyond(inside.cumsum(dtype=np.float64) + before, goal, inside)


def _first_beyond(
    ends: NDArray[np.float64], goal: float, weights: NDArray[np.float32] | NDArray[np.float64]
) -> int:
    """The first place whose end is greater than `goal`; the last with a weight when rounding has
    left none."""
    place = int(ends.searchsorted(goal, side="right"))
    return place if place < len(ends) else int(np.flatnonzero(weights)[-1])
