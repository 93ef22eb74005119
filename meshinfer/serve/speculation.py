"""Whether to guess, what and how much: decided for every step from what was measured.

Expected tokens per second decide: step times and hops (`step_cost`), who else is served, and how
often guesses of that kind and of that request were right (`acceptance`). Where no guess pays, as in
a full batch, none is made. Pure but for the clock that it is given; owned by the scheduler's side.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

from meshinfer.core.draft import DraftNode
from meshinfer.core.step import Sampled
from meshinfer.serve.acceptance import Acceptance, Evidence, OwnRecord, Source
from meshinfer.serve.candidates import Candidate, best_chain, chosen, depth_first, is_chain
from meshinfer.serve.draft_book import DraftBook
from meshinfer.serve.guessing import Sources, candidates
from meshinfer.serve.lookup_drafts import LookupDrafts
from meshinfer.serve.pick import Pick
from meshinfer.serve.row_choice import Coming, Cycle, RowChoice, best_rows, waiting_s
from meshinfer.serve.sequence import Sequence
from meshinfer.serve.speculation_figures import SpeculationFigures
from meshinfer.serve.step_cost import StepCost
from meshinfer.serve.verification import Verdict

MOST_DEPTH = 24
"""Tokens ahead of what is known that guesses may reach in one row."""

MOST_AHEAD = 3
"""Rows of one sequence that may be under way behind its first."""

_ALMOST_SURE = 0.97
_HOLD_SLACK = 2.0
_WEIGHT = 0.2  # of the newest draft step in its mean


@dataclass(frozen=True, slots=True)
class Company:
    """Who is served beside."""

    decoding: int  # sequences
    groups: int  # steps with decoding rows that should be under way
    flights: int  # steps that are
    has_waiting: bool  # requests wait for their turn


@dataclass(frozen=True, slots=True)
class SpeculationOptions:
    trees: bool = False  # all stages take token trees
    most_drafts: int = 48  # in one step, all sequences together
    lookup: bool = True


@dataclass(slots=True)
class _Own:
    """What is known of one sequence's guesses."""

    record: OwnRecord = field(default_factory=OwnRecord)
    under_way: list[Candidate] = field(default_factory=list)  # those of `Sequence.guess`
    held_at: int = -1  # tokens that it had when it was first held back
    held_until: float = 0.0


class Speculation:
    """`clock` is monotonic seconds; it only bounds how long a step waits for drafts."""

    def __init__(
        self, cost: StepCost, options: SpeculationOptions, clock: Callable[[], float]
    ) -> None:
        self._cost = cost
        self._options = options
        self._clock = clock
        self._sources = Sources(LookupDrafts(), Acceptance())
        self._own: dict[int, _Own] = {}  # by id() of the sequence
        self.book = DraftBook()
        self.figures = SpeculationFigures()
        self._held_until: float | None = None  # when a step that waits for drafts goes out anyhow
        self._level_s = 0.0  # of one step of the draft model; 0: there is none

    def begin_step(self) -> None:
        """Whether anything is held back is decided anew."""
        self._held_until = None

    def guesses(
        self, ready: SequenceOf[Sequence], company: Company
    ) -> list[tuple[Candidate, ...]] | None:
        """Drafts behind the last known token of each; None: better ones are worth a short wait."""
        cycle = self._cycle(company.groups)
        if cycle is None or not self._may_pay(len(ready), cycle):
            return self._plain(ready)
        pools = [self._pool(one) for one in ready]
        choice = best_rows(pools, cycle, self._options.most_drafts)
        if self._holds(ready, pools, choice, cycle):
            return None
        guesses = [_row(pool, places) for pool, places in zip(pools, choice.places, strict=True)]
        for sequence, guess in zip(ready, guesses, strict=True):
            self._note(sequence, guess)
        return guesses

    def ahead(self, sequence: Sequence, company: Company) -> tuple[Candidate, ...]:
        """Drafts behind a row that is under way, where stages would stand idle and they are right
        often enough: a wrong one delays the next row by the time of one stage."""
        one, two = self._cost.round_trip(1), self._cost.slowest(1)
        own = self._of(sequence)
        if (
            one is None
            or two is None
            or sequence.has_tree
            or sequence.in_flight > MOST_AHEAD
            or (company.flights + 1) * two > one
            or company.has_waiting
        ):
            return ()
        path = math.prod(candidate.chance for candidate in own.under_way)
        least = two / (one + two)
        pool = self._candidates(sequence, path) if path >= least else []
        places = [place for place in best_chain(pool) if pool[place].reach >= least]
        if len(places) < self._least_ahead(sequence, two):
            return ()
        guess = chosen(pool, places)
        own.under_way += guess
        self.figures.decide("ahead", len(guess))
        return guess

    def verified(self, pick: Pick, found: Verdict, taken: SequenceOf[Sampled]) -> None:
        """A row came back; `taken` of what was drawn counts."""
        sequence, tokens = pick.sequence, [one.token for one in taken]
        own = self._of(sequence)
        if pick.row.parents:
            self._learn_tree(pick, found, tokens, own)
        else:
            self._learn_chain(sequence, tokens, own)
        if pick.row.decodes:
            accepted = len(tokens) - (0 if pick.is_ahead else 1)
            self.figures.verified(len(pick.guesses), max(0, accepted), len(tokens))
        self._learn_model(sequence, own.record)

    def ended(self, sequence: Sequence) -> None:
        """Answered, cancelled or failed. Idempotent."""
        self._own.pop(id(sequence), None)
        if sequence.finish is not None:
            self._sources.lookup.remember(sequence)
        else:
            self._sources.lookup.forget(sequence)

    def take(self, nodes: SequenceOf[tuple[int, DraftNode]], rows: int, seconds: float) -> int:
        """Guesses of one step of the draft model; how many are of use."""
        self.figures.drafted(rows, seconds)
        weight = _WEIGHT if self._level_s else 1.0
        self._level_s += (seconds - self._level_s) * weight
        return self.book.take(nodes)

    def draft_lost(self) -> None:
        """Nothing more comes from the draft model."""
        self.book.clear()
        self._level_s = 0.0

    def held_s(self) -> float | None:
        """For how long the step that `guesses` held back may still wait; None: there is none."""
        return None if self._held_until is None else max(0.0, self._held_until - self._clock())

    def wants_drafts(self, sequences: int) -> bool:
        """Whether drafts may pay while so many sequences decode: the draft need not work else."""
        groups = self._cost.groups(max(1, sequences))
        cycle = self._cycle(groups)
        return cycle is None or self._may_pay(max(1, -(-sequences // groups)), cycle)

    def _cycle(self, groups: int) -> Cycle | None:
        if self._cost.cycle(1, 1) is None:
            return None
        return lambda rows: self._cost.cycle(rows, max(1, groups)) or math.inf

    def _may_pay(self, sequences: int, cycle: Cycle) -> bool:
        """Whether a draft would pay that is almost surely right: in a full batch none does."""
        per_s = sequences / cycle(sequences)
        return any(
            (sequences + drafts * _ALMOST_SURE) / cycle(sequences + drafts) > per_s * 1.02
            for drafts in (1, 4 * sequences)
        )

    def _plain(self, ready: SequenceOf[Sequence]) -> list[tuple[Candidate, ...]]:
        for sequence in ready:
            self._note(sequence, ())
        return [()] * len(ready)

    def _note(self, sequence: Sequence, guess: tuple[Candidate, ...]) -> None:
        kind = "plain" if not guess else "chain" if is_chain(guess) else "tree"
        self.figures.decide(kind, len(guess))
        self._of(sequence).under_way = list(guess) if kind == "chain" else []

    def _pool(self, sequence: Sequence) -> list[Candidate]:
        pool = self._candidates(sequence, 1.0)
        if self._options.trees:
            return pool
        return list(chosen(pool, best_chain(pool)))

    def _candidates(self, sequence: Sequence, path: float) -> list[Candidate]:
        return candidates(
            self._sources,
            sequence,
            self._of(sequence).record,
            self.book.mirror(sequence.key),
            path,
            min(MOST_DEPTH, sequence.drafts_allowed - len(sequence.guess)),
        )

    def _holds(
        self,
        ready: SequenceOf[Sequence],
        pools: SequenceOf[SequenceOf[Candidate]],
        choice: RowChoice,
        cycle: Cycle,
    ) -> bool:
        """Whether the step waits for drafts that are being made."""
        if not self._level_s:
            return False
        now, coming = self._clock(), []
        for sequence, pool in zip(ready, pools, strict=True):
            own = self._of(sequence)
            if own.held_at == len(sequence.tokens) and now >= own.held_until:
                return False  # it waited long enough
            mirror = self.book.mirror(sequence.key)
            if mirror is not None and mirror.heard and sequence.drafts_allowed > len(pool):
                coming.append(_coming(pool, own.record))
        wait_s = waiting_s(choice, coming, self._level_s, len(ready), cycle)
        if not wait_s:
            return False
        for sequence in ready:
            own = self._of(sequence)
            if own.held_at != len(sequence.tokens):
                own.held_at = len(sequence.tokens)
                own.held_until = now + _HOLD_SLACK * wait_s
                self.figures.decide("held")
            self._held_until = max(self._held_until or 0.0, own.held_until)
        return True

    def _least_ahead(self, sequence: Sequence, slowest_s: float) -> int:
        """Drafts that make a row ahead worth its step: as many as come while a stage computes."""
        mirror = self.book.mirror(sequence.key)
        if mirror is None or not mirror.heard or not self._level_s:
            return 1
        return max(1, min(4, round(slowest_s / self._level_s)))

    def _learn_model(self, sequence: Sequence, record: OwnRecord) -> None:
        """From every guess in the place of a token that is known now, sent or not: a draft that
        was switched off shows when it would pay again."""
        mirror = self.book.mirror(sequence.key)
        for nodes, token in [] if mirror is None else mirror.know(sequence.tokens):
            for node in nodes:
                evidence = Evidence(Source.MODEL, node.chance)
                self._sources.acceptance.learn(evidence, record, node.token == token)
            if nodes:
                best = max(nodes, key=lambda node: node.chance)
                record.add_best(best.token == token)

    def _learn(self, guess: Candidate, record: OwnRecord, is_hit: bool) -> None:
        for one in guess.evidence:
            if one.source is not Source.MODEL:
                self._sources.acceptance.learn(one, record, is_hit)

    def _learn_tree(self, pick: Pick, found: Verdict, tokens: SequenceOf[int], own: _Own) -> None:
        for place, token in zip(found.places, tokens, strict=False):
            for one in pick.guesses:
                if one.parent == place - 1:
                    self._learn(one, own.record, one.token == token)

    def _learn_chain(self, sequence: Sequence, tokens: SequenceOf[int], own: _Own) -> None:
        for one, token in zip(own.under_way, tokens, strict=False):
            self._learn(one, own.record, one.token == token)
            if one.token != token:
                break
        left = len(sequence.guess)
        own.under_way = own.under_way[len(own.under_way) - left :] if left else []

    def _of(self, sequence: Sequence) -> _Own:
        return self._own.setdefault(id(sequence), _Own())


def _row(pool: SequenceOf[Candidate], places: SequenceOf[int]) -> tuple[Candidate, ...]:
    """The chosen part of a pool, its likeliest path in front."""
    guess = chosen(pool, places)
    order = depth_first(guess)
    renamed = {place: index for index, place in enumerate(order)}
    return tuple(
        Candidate(renamed.get(one.parent, -1), one.token, one.evidence, one.chance, one.reach)
        for one in (guess[place] for place in order)
    )


def _coming(pool: SequenceOf[Candidate], record: OwnRecord) -> Coming:
    """What one more level of the draft model's tree would bring."""
    path = [pool[place] for place in best_chain(pool)]
    return Coming(path[-1].reach if path else 1.0, record.best)
