"""What users ask: kinds of questions with weights, each of a prompt and an answer length."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

_TEXT = (
    "sea light stone river night wind ship house road tree snow fire glass door hand voice bird "
    "hill lamp field rain horse bread king letter garden clock bridge star mountain winter summer"
)
WORDS = _TEXT.split()
"""Common words: most tokenizers have each as one token behind a space."""

OPENING = "Tell a very long story, with all details, in which these words occur:"


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of question. Lengths in tokens; that of the prompt is approximate."""

    weight: float
    prompt: int
    answer: int

    @classmethod
    def parse(cls, text: str) -> Kind:
        """`WEIGHT:PROMPT:ANSWER`, such as `3:50:200`. Raises ValueError."""
        parts = text.split(":")
        if len(parts) != 3:
            raise ValueError(f"'{text}' is no kind; give WEIGHT:PROMPT:ANSWER, such as 3:50:200")
        kind = cls(float(parts[0]), int(parts[1]), int(parts[2]))
        if kind.weight <= 0 or kind.prompt < 1 or kind.answer < 1:
            raise ValueError(f"'{text}': weight and lengths are positive")
        return kind


def pick(kinds: Sequence[Kind], chance: random.Random) -> Kind:
    """By weight."""
    return chance.choices(kinds, [kind.weight for kind in kinds])[0]


def prompt_of(tokens: int, chance: random.Random) -> str:
    """About `tokens` tokens that no earlier prompt begins with, so that no cache helps."""
    words = chance.choices(WORDS, k=max(1, tokens - len(OPENING.split()) - 1))
    return f"{words[0].capitalize()} {chance.randrange(10**6)}. {OPENING} {' '.join(words)}."
