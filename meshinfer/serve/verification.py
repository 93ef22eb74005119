"""Which drafts were right. Pure.

The last stage draws a token behind every token of a row, each from the distribution that the model
has there, with the number that belongs to its position alone (`engine.sampling`). A draft is right
when it is the token that was drawn: what is taken is then, token by token, what a run without
drafts draws, whatever the temperature, the penalties or the grammar. Nothing is accepted that was
not drawn, so the distribution is the model's own (docs/decisions/013).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verdict:
    """`places` in the row whose drawn tokens count, in order; the first is always there."""

    places: tuple[int, ...]

    @property
    def in_place(self) -> int:
        """How many of them lie in the cache where they belong: from the row's beginning on."""
        count = 0
        while count < len(self.places) and self.places[count] == count:
            count += 1
        return count

    def first(self, count: int) -> Verdict:
        return Verdict(self.places[:count])


def verdict(tokens: Sequence[int], parents: Sequence[int], drawn: Sequence[int]) -> Verdict:
    """`tokens` of a row and what was drawn behind each; `parents` as in core.step.Row."""
    places = [0]
    while True:
        place = places[-1]
        following = _child(tokens, parents, place, drawn[place])
        if following is None:
            return Verdict(tuple(places))
        places.append(following)


def _child(tokens: Sequence[int], parents: Sequence[int], place: int, token: int) -> int | None:
    if not parents:
        following = place + 1
        return following if following < len(tokens) and tokens[following] == token else None
    for other in range(place + 1, len(tokens)):
        if parents[other] == place and tokens[other] == token:
            return other
    return None
