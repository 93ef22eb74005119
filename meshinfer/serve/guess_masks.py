"""What a grammar allows behind each draft, and which drafts it allows at all. Pure."""

from __future__ import annotations

from meshinfer.errors import InvalidRequest
from meshinfer.serve.candidates import Candidate, chosen
from meshinfer.serve.sequence import Constraint, Sequence

MOST_GUESSES = 12
"""Of a row with a grammar: each needs a mask as wide as the vocabulary, computed and sent."""


def masked(
    sequence: Sequence, known: tuple[int, ...], guess: tuple[Candidate, ...]
) -> tuple[bytes, tuple[Candidate, ...]]:
    """The masks of a row of `known` (the last known token, or none: then the drafts follow what is
    under way) and drafts, joined; and the drafts that the grammar allows. Without a grammar there
    is no mask and all drafts stay. Raises InvalidRequest: the grammar gives up at what is known.
    """
    if sequence.constraint is None:
        return b"", guess
    start = sequence.constraint
    masks = [start.mask()] if known else []
    for token in sequence.guess:
        following = _after(start, token)
        if following is None:
            return b"", ()
        start = following
    states: dict[int, Constraint] = {-1: start}
    for place, one in enumerate(guess[:MOST_GUESSES]):
        state = states.get(one.parent)
        following = None if state is None else _after(state, one.token)
        if following is not None:
            states[place] = following
    allowed = sorted(place for place in states if place >= 0)
    masks += [states[place].mask() for place in allowed]
    return b"".join(masks), chosen(guess, allowed)


def _after(state: Constraint, token: int) -> Constraint | None:
    """The grammar behind `token`; None where it may not stand, or nothing may follow it."""
    mask = state.mask()
    if not mask[token >> 3] >> (token & 7) & 1:
        return None
    following = state.copy()
    try:
        following.accept(token)
        if following.is_complete:
            return None
        following.mask()
    except InvalidRequest:
        return None  # a guess must not end an answer
    return following
