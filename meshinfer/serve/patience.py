"""Whether a step waits a little for drafts that are being made, and until when. Pure but for the
clock that it is given: monotonic seconds."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf

from meshinfer.serve.acceptance import Source
from meshinfer.serve.candidates import Candidate
from meshinfer.serve.draft_book import DraftBook
from meshinfer.serve.guess_record import GuessRecord
from meshinfer.serve.row_choice import Coming, Cycle, Pace, RowChoice, waiting_s
from meshinfer.serve.sequence import Sequence

_SLACK = 2.0
"""Drafts may take so many times as long as they should before the step goes out without them."""

_FASTER, _SLOWER = 0.5, 0.03
"""Of the newest draft step in the time that one takes: who shares a core with a stage is slow while
that computes, and quick while a step is held back for it."""

_LEAST_REST = 0.2
_LEAST_REACH = 0.05
"""Behind a guess less likely than that, a draft model hardly goes on."""


class Patience:
    """Of all sequences; `held_s` is for how long to wait before asking again."""

    def __init__(self, book: DraftBook, clock: Callable[[], float]) -> None:
        self._book = book
        self._clock = clock
        self._until: float | None = None
        self._news_at = 0.0
        self.level_s = 0.0  # of one step of the draft model; 0: there is none

    def begin_step(self) -> None:
        """Whether anything is held back is decided anew."""
        self._until = None

    def held_s(self) -> float | None:
        return None if self._until is None else max(0.0, self._until - self._clock())

    def observe(self, seconds: float) -> None:
        """A step of the draft model."""
        self._news_at = self._clock()
        if not self.level_s:
            self.level_s = seconds
        weight = _FASTER if seconds < self.level_s else _SLOWER
        self.level_s += (seconds - self.level_s) * weight

    def holds(
        self,
        ready: SequenceOf[tuple[Sequence, GuessRecord]],
        coming: SequenceOf[Coming],
        choice: RowChoice,
        cycle: Cycle,
        least_per_s: float,
    ) -> bool:
        """Whether the step waits for guesses in `coming` of the sequences in `ready`; without that
        it brings `least_per_s` tokens a second."""
        if not self.level_s or any(self._has_waited(*one) for one in ready):
            return False
        pace = self._pace(is_fresh=any(one.reach < 1 for one in coming))
        return self._wait(ready, waiting_s(choice, coming, pace, len(ready), cycle, least_per_s))

    def _pace(self, is_fresh: bool) -> Pace:
        """What it computes now comes when a level has passed since the last. Where nothing stands
        behind what is known, that may be of no use: then half a level more on average."""
        rest_s = self.level_s - (self._clock() - self._news_at)
        first_s = max(_LEAST_REST * self.level_s, rest_s)
        return Pace(first_s if is_fresh else first_s + 0.5 * self.level_s, self.level_s)

    def coming(
        self,
        ready: SequenceOf[tuple[Sequence, GuessRecord]],
        pools: SequenceOf[SequenceOf[Candidate]],
    ) -> list[Coming]:
        """What the draft model is about to add to these guesses."""
        return [
            coming
            for (sequence, record), pool in zip(ready, pools, strict=True)
            if self._is_coming(sequence) and sequence.drafts_allowed > len(pool)
            if (coming := _coming(pool, record)) is not None
        ]

    def holds_for(
        self, sequence: Sequence, record: GuessRecord, chain: SequenceOf[Candidate]
    ) -> bool:
        """Whether one that asked for a number of drafts still waits for some."""
        missing = sequence.drafts_allowed - len(chain)
        is_over = bool(chain) and chain[-1].reach < _LEAST_REACH
        if missing <= 0 or is_over or not self.level_s or not self._is_coming(sequence):
            return False
        if self._has_waited(sequence, record):
            return False
        return self._wait([(sequence, record)], missing * self.level_s)

    def _is_coming(self, sequence: Sequence) -> bool:
        mirror = self._book.mirror(sequence.key)
        return mirror is not None and mirror.heard

    def _has_waited(self, sequence: Sequence, record: GuessRecord) -> bool:
        """Long enough."""
        return record.held_at == len(sequence.tokens) and self._clock() >= record.held_until

    def _wait(self, ready: SequenceOf[tuple[Sequence, GuessRecord]], seconds: float) -> bool:
        if not seconds:
            return False
        for sequence, record in ready:
            if record.held_at != len(sequence.tokens):
                record.held_at = len(sequence.tokens)
                record.held_until = self._clock() + _SLACK * seconds
            self._until = max(self._until or 0.0, record.held_until)
        return True


def _coming(pool: SequenceOf[Candidate], record: GuessRecord) -> Coming | None:
    """What one more level of the draft model's tree would bring; None: it goes no further there."""
    path: list[Candidate] = []
    chance, parent = 1.0, -1
    for place, one in enumerate(pool):
        own = _own_chance(one)
        if one.parent == parent and own is not None:
            path.append(one)
            chance, parent = chance * own, place
    if chance < record.horizon.least or len(path) >= record.horizon.depth:
        return None
    return Coming(path[-1].reach if path else 1.0, record.own.best)


def _own_chance(guess: Candidate) -> float | None:
    """What the draft model says of it; None: it is not its guess."""
    return max((one.strength for one in guess.evidence if one.source is Source.MODEL), default=None)
