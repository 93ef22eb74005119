"""What a draft model guesses: a tree of tokens that may follow what is known of a sequence."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DraftNode:
    """One guessed token."""

    number: int  # of its sequence, ascending, never used twice
    parent: int | None  # the guess before it; None: it follows the known token at `position` - 1
    position: int  # in the sequence, as positions of rows are
    token: int
    chance: float  # 0..1, that this token follows its parent, as the draft model sees it
