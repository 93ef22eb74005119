"""Random answers under a constraint."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from random import Random

from meshinfer.engine.grammar import Constraint


def allowed(constraint: Constraint) -> list[int]:
    mask = int.from_bytes(constraint.mask(), "little")
    return [token for token in range(mask.bit_length()) if mask >> token & 1]


def walk(
    constraint: Constraint,
    vocabulary: Mapping[int, bytes],
    end_tokens: Collection[int],
    random: Random,
    most: int = 400,
) -> bytes | None:
    """The text of a random answer that ends where it may; None when `most` tokens were not enough.

    Closing characters are preferred, and after half of the tokens chosen wherever they may come.
    """
    text = b""
    for drawn in range(most):
        choice = allowed(constraint)
        ends = [token for token in choice if token in end_tokens]
        if ends and (random.random() < 0.5 or len(ends) == len(choice)):
            constraint.accept(random.choice(ends))
            assert constraint.is_complete
            assert set(allowed(constraint)) == set(end_tokens)
            return text
        choice = [token for token in choice if token not in end_tokens]
        closing = [one for one in choice if vocabulary[one][:1] in (b'"', b"}", b"]", b":", b",")]
        closing = [one for one in closing if vocabulary[one][:1] != b","] or closing
        late = drawn > most // 2
        token = random.choice(closing if closing and (late or random.random() < 0.3) else choice)
        constraint.accept(token)
        text += vocabulary[token]
    return None
