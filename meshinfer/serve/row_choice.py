"""How many drafts go along, and whether better ones are worth a wait. Pure.

The measure is tokens per second of all who share the step: what a step is expected to bring, over
the time until each of them gets the next one. A draft more costs what the measured curves say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from meshinfer.serve.candidates import Candidate

Cycle = Callable[[int], float]
"""Seconds from one step of a group to its next, by the step's rows (tokens)."""

_FOR_NOTHING = 1.01
"""A gain below this is not worth the work of a larger step."""

_WORTH_WAITING = 1.05
_MOST_LEVELS = 8


@dataclass(frozen=True, slots=True)
class RowChoice:
    """Places of the chosen drafts for each sequence, and the tokens per second expected."""

    places: tuple[tuple[int, ...], ...]
    tokens: float  # expected of the step
    per_s: float

    @property
    def drafts(self) -> int:
        return sum(map(len, self.places))


def best_rows(pools: Sequence[Sequence[Candidate]], cycle_s: Cycle, most: int) -> RowChoice:
    """`pools` has the candidates of every sequence, parents first; at most `most` drafts. The
    likeliest come first, so what is chosen is closed under parents."""
    entries = sorted(
        (-one.reach, index, place)
        for index, pool in enumerate(pools)
        for place, one in enumerate(pool)
    )[:most]
    sequences = len(pools)
    expected = float(sequences)
    best, best_tokens, best_per_s = 0, expected, expected / cycle_s(sequences)
    plain = best_per_s
    for count, (reach, _, _) in enumerate(entries, 1):
        expected -= reach
        per_s = expected / cycle_s(sequences + count)
        if per_s > best_per_s and per_s > plain * _FOR_NOTHING:
            best, best_tokens, best_per_s = count, expected, per_s
    places: list[list[int]] = [[] for _ in pools]
    for _, index, place in entries[:best]:
        places[index].append(place)
    return RowChoice(tuple(tuple(sorted(one)) for one in places), best_tokens, best_per_s)


@dataclass(frozen=True, slots=True)
class Coming:
    """Drafts that a model is making right now for one sequence."""

    reach: float  # of the deepest guess so far; 1 where there is none
    chance: float  # that one more of this request is right


def streamed_per_s(
    now: RowChoice, coming: Sequence[Coming], draft_s: float, sequences: int, cycle_s: Cycle
) -> float:
    """Tokens per second expected when the step goes out as it is and what is drafted later follows
    it, a token every `draft_s` seconds, as long as the tokens before are right."""
    following = sum(one.reach * one.chance / (1.0 - min(0.96, one.chance)) for one in coming)
    # What turns out to be wrong is under way when the right one follows.
    late_s = draft_s * (0.5 + following / max(1, sequences))
    return (now.tokens + following) / (cycle_s(sequences + now.drafts) + late_s)


@dataclass(frozen=True, slots=True)
class Pace:
    """When a draft model's next guesses come, in seconds from now, and those after them."""

    first_s: float
    level_s: float

    def until(self, level: int) -> float:
        return self.first_s + (level - 1) * self.level_s


def waiting_s(
    now: RowChoice,
    coming: Sequence[Coming],
    pace: Pace,
    sequences: int,
    cycle_s: Cycle,
    least_per_s: float,
) -> float:
    """How long to wait for deeper drafts of the sequences in `coming`; 0: the step goes out as it
    is, which brings `least_per_s`."""
    best_s, best_per_s = 0.0, least_per_s * _WORTH_WAITING
    tokens, reaches = now.tokens, [one.reach for one in coming]
    for level in range(1, _MOST_LEVELS + 1 if coming else 0):
        for index, one in enumerate(coming):
            reaches[index] *= one.chance
            tokens += reaches[index]
        rows = sequences + now.drafts + level * len(coming)
        per_s = tokens / (cycle_s(rows) + pace.until(level))
        if per_s > best_per_s:
            best_s, best_per_s = pace.until(level), per_s
    return best_s
