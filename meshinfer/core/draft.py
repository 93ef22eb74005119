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


@dataclass(frozen=True, slots=True)
class Horizon:
    """Which guesses are of use to whoever asks for them."""

    depth: int  # tokens ahead of what is known; 0: none
    least: float  # 0..1, that all of a path is right; behind less, nothing is guessed


@dataclass(frozen=True, slots=True)
class DraftTask:
    """What a stage host must know of the large model to draft for it."""

    vocabulary_size: int  # of the large model: no guess is beyond it
    ends: tuple[int, ...]  # tokens behind which nothing follows
    special: tuple[int, ...]  # that a trimmed head keeps; empty: the head is not trimmed
