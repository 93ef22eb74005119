"""Whether an answer holds another user's word: each question carries one that nobody else has."""

from __future__ import annotations

import random

LENGTH = 8
_CONSONANTS, _VOWELS = "kzvjxqwb", "aeiou"


def new_word(chance: random.Random, known: set[str]) -> str:
    """Eight letters that no language has; put into `known`."""
    while True:
        letters = (chance.choice(_CONSONANTS) + chance.choice(_VOWELS) for _ in range(LENGTH // 2))
        word = "".join(letters)
        if word not in known:
            known.add(word)
            return word


def question(word: str) -> str:
    return f'Repeat this word and nothing else: "{word}".'


def foreign_words(text: str, own: str, known: set[str]) -> set[str]:
    """Words of other questions anywhere in `text`, also inside longer ones."""
    lowered = text.lower()
    windows = {lowered[at : at + LENGTH] for at in range(len(lowered) - LENGTH + 1)}
    return (windows & known) - {own}
