"""What changes a row of logits before a token is drawn: bias, penalties, forbidden tokens.

All functions write to the row that they are given, which is a copy of its own, and touch only the
tokens that they are about. Called by the sampling, in this order (vLLM's): bias, penalties, mask.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meshinfer.core.request import Sampling
from meshinfer.errors import StageFailed

_BUG = "This is a bug: report it."
_WORD_BITS = 32


def needs_tokens(sampling: Sampling) -> bool:
    """Whether a draw depends on the tokens before it."""
    return (
        sampling.repetition_penalty != 1.0
        or sampling.presence_penalty != 0.0
        or sampling.frequency_penalty != 0.0
    )


def add_bias(row: NDArray[np.float32], bias: tuple[tuple[int, float], ...]) -> None:
    """Adds each number to the logit of its token. Raises StageFailed: no such token."""
    tokens = np.array([token for token, _ in bias], np.int64)
    _check_tokens(tokens, row)
    # Unbuffered, so that a token that is named twice gets both.
    np.add.at(row, tokens, np.array([value for _, value in bias], np.float32))


def penalise(
    row: NDArray[np.float32], sampling: Sampling, tokens: NDArray[np.int32], prompt_length: int
) -> None:
    """Repetition penalty for all `tokens`, presence and frequency penalties for the answer alone.

    Raises StageFailed: a token is not in the vocabulary.
    """
    _check_tokens(tokens, row)
    if sampling.repetition_penalty != 1.0:
        # A token that occurs twice is computed twice from the same value, and written twice.
        values = row[tokens]
        penalty = np.float32(sampling.repetition_penalty)
        row[tokens] = np.where(values > 0, values / penalty, values * penalty)
    if sampling.presence_penalty == 0.0 and sampling.frequency_penalty == 0.0:
        return
    occurring, counts = np.unique(tokens[prompt_length:], return_counts=True)
    frequency = np.float32(sampling.frequency_penalty)
    presence = np.float32(sampling.presence_penalty)
    row[occurring] -= frequency * counts.astype(np.float32) + presence


def forbid(row: NDArray[np.float32], mask: bytes) -> None:
    """Forbidden tokens get -inf. `mask` has a little-endian bit per token, in words of 32 bits.

    Raises StageFailed: the mask is not as long as the vocabulary, or allows nothing.
    """
    words = -(-len(row) // _WORD_BITS)
    if len(mask) != words * 4:
        raise StageFailed(
            f"A mask of {len(mask)} bytes came for {len(row)} logits, which need {words * 4}.",
            _BUG,
        )
    bits = np.unpackbits(np.frombuffer(mask, np.uint8), count=len(row), bitorder="little")
    allowed = bits.view(np.bool_)
    if not allowed.any():
        raise StageFailed(
            "The grammar's mask allows no token at all.", "Mend the grammar of the request."
        )
    np.copyto(row, np.float32(-np.inf), where=~allowed)


def _check_tokens(tokens: NDArray[np.int32] | NDArray[np.int64], row: NDArray[np.float32]) -> None:
    """A negative id would count from the end without a word."""
    if tokens.size and not 0 <= tokens.min() <= tokens.max() < len(row):
        raise StageFailed(
            f"A bias or history names a token that is not in the vocabulary of {len(row)}.",
            "Name tokens of this model only.",
        )
