"""How often drafts are right, by what is known of them. Pure; learns from every verification.

A draft model's own probability and the length of a lookup's match say much about a guess; how much
is learned for every model pair. What a request is about says the rest: a factor of its own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Source(Enum):
    MODEL = "model"
    LOOKUP = "lookup"


@dataclass(frozen=True, slots=True)
class Evidence:
    """Why a token was guessed: the model's probability (0..1), or the tokens that matched."""

    source: Source
    strength: float


_EDGES = {
    Source.MODEL: (0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97),
    Source.LOOKUP: (3, 4, 5, 7, 10, 16),
}
_EXPECTED = {
    # What a draft model says of itself is close to the truth: 0.25 of those at 0..0.3, 0.5 at
    # 0.3..0.5, 0.70 at 0.5..0.85, 0.96 at 0.85..0.95, all above (a 0.5B for its 1.5B).
    Source.MODEL: (0.02, 0.07, 0.15, 0.27, 0.42, 0.58, 0.7, 0.85, 0.95, 0.99),
    Source.LOOKUP: (0.25, 0.4, 0.5, 0.6, 0.75, 0.85, 0.92),
}
_PRIOR_TRIALS = 6.0
_REMEMBERED = 400.0  # trials; older ones count less and less
_OWN_TRIALS = 4.0  # of a request, before its own record outweighs what is expected
_OWN_REMEMBERED = 48.0
_USUAL = 0.7
"""How often a draft model's best guess is right, before anything is known of a request."""

_FACTORS = (0.05, 1.3)
_SURE = 0.995


@dataclass(slots=True)
class _Tally:
    hits: float
    trials: float

    def add(self, hits: float, trials: float, most: float) -> None:
        self.hits += hits
        self.trials += trials
        if self.trials > most:
            self.hits *= most / self.trials
            self.trials = most


class OwnRecord:
    """One request's: how its drafts did against what was expected of them, by source."""

    __slots__ = ("_best", "_tallies")

    def __init__(self) -> None:
        self._tallies = {source: _Tally(0.0, 0.0) for source in Source}
        self._best = _Tally(_USUAL * _OWN_TRIALS, _OWN_TRIALS)

    @property
    def best(self) -> float:
        """How often the draft model's best guess was right of late."""
        return self._best.hits / self._best.trials

    def add_best(self, is_hit: bool) -> None:
        self._best.add(float(is_hit), 1.0, _OWN_REMEMBERED)

    def factor(self, source: Source) -> float:
        """What the expectation is to be multiplied by; 1 while little is known."""
        tally = self._tallies[source]
        least, most = _FACTORS
        return min(most, max(least, (tally.hits + _OWN_TRIALS) / (tally.trials + _OWN_TRIALS)))

    def add(self, source: Source, expected: float, is_hit: bool) -> None:
        self._tallies[source].add(float(is_hit), expected, _OWN_REMEMBERED)


class Acceptance:
    """All requests of a plan."""

    def __init__(self) -> None:
        self._tallies = {
            source: [_Tally(_PRIOR_TRIALS * mean, _PRIOR_TRIALS) for mean in means]
            for source, means in _EXPECTED.items()
        }

    def chance(self, evidence: Iterable[Evidence], own: OwnRecord) -> float:
        """That a token is right where its parent is, 0..1; the best of what speaks for it."""
        return max(min(_SURE, self._expected(one) * own.factor(one.source)) for one in evidence)

    def learn(self, evidence: Evidence, own: OwnRecord, is_hit: bool) -> None:
        """It is known whether a guess was right, whose parent was."""
        own.add(evidence.source, self._expected(evidence), is_hit)
        self._tally(evidence).add(float(is_hit), 1.0, _REMEMBERED)

    def _expected(self, evidence: Evidence) -> float:
        tally = self._tally(evidence)
        return tally.hits / tally.trials

    def _tally(self, evidence: Evidence) -> _Tally:
        place = bisect_right(_EDGES[evidence.source], evidence.strength)
        return self._tallies[evidence.source][place]
