"""What a draft model's logits say may follow: a few tokens with their chances. Pure.

What greedy requests take is the most likely token; its probability at temperature 1 tells well how
often the large model agrees. A sampled request draws, and with the same number for a position as
the large model will (`engine.sampling`): then both tend to draw the same token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from meshinfer.core.request import Sampling
from meshinfer.engine.sampling import DrawRow, draw
from meshinfer.errors import StageFailed

MOST = 3
"""Guesses for one place."""

LEAST_CHANCE = 0.05
"""Of the second and third; the first is always one."""


def guesses(
    logits: NDArray[np.float32],
    wanted: Sequence[tuple[Sampling, int]],
    columns: NDArray[np.int64] | None,
    vocabulary_size: int,
) -> list[list[tuple[int, float]]]:
    """(token, chance) for each row of `logits` [rows, columns], the first guess in front. `wanted`
    are each row's sampling and the position of the guess. `columns` are the ids that columns mean;
    None: their own numbers. Ids from `vocabulary_size` on, that of the large model, are padding.
    Raises StageFailed: the logits are no numbers."""
    if columns is None:
        logits = logits[:, :vocabulary_size]
    found = []
    for row, (sampling, position) in zip(logits, wanted, strict=True):
        if sampling.temperature <= 0:
            found.append(_named(_likeliest(row, 1.0), columns))
            continue
        first = _drawn(row, sampling, position, columns, vocabulary_size)
        chances = dict(_named(_likeliest(row, sampling.temperature, least=0.0), columns))
        others = [pair for pair in chances.items() if pair[0] != first and pair[1] >= LEAST_CHANCE]
        # One that is drawn in spite of a small chance is likely drawn by both.
        found.append([(first, max(0.5, chances.get(first, 0.0))), *others][:MOST])
    return found


def _likeliest(
    row: NDArray[np.float32], temperature: float, least: float = LEAST_CHANCE
) -> list[tuple[int, float]]:
    """(column, probability), the highest first."""
    count = min(MOST, len(row))
    best = np.argpartition(row, len(row) - count)[-count:]
    best = best[np.argsort(-row[best], kind="stable")]
    scale = np.float32(1.0 / temperature)
    highest = row[best[0]]
    if not np.isfinite(highest):
        raise StageFailed("The draft model gave numbers that are not finite.")
    total = float(np.exp((row - highest) * scale).sum())
    chances = (np.exp((row[best] - highest) * scale) / total).tolist()
    pairs = list(zip(best.tolist(), chances, strict=True))
    return [pair for place, pair in enumerate(pairs) if not place or pair[1] >= least]


def _named(
    pairs: list[tuple[int, float]], columns: NDArray[np.int64] | None
) -> list[tuple[int, float]]:
    if columns is None:
        return pairs
    return [(int(columns[column]), chance) for column, chance in pairs]


def _drawn(
    row: NDArray[np.float32],
    sampling: Sampling,
    position: int,
    columns: NDArray[np.int64] | None,
    vocabulary_size: int,
) -> int:
    """What a request draws here, without what only the large model's PC knows of it."""
    whole = row
    if columns is not None:
        whole = np.full(vocabulary_size, -np.inf, np.float32)
        whole[columns] = row
    plain = replace(
        sampling,
        logprobs=None,
        bias=(),
        repetition_penalty=1.0,
        presence_penalty=0.0,
        frequency_penalty=0.0,
    )
    return draw(whole[None], [DrawRow(plain, position)])[0].token
