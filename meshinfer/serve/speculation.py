"""Whether to guess, what and how much: decided for every step from what was measured.

Expected tokens per second decide: step times and hops (`step_cost`), who else is served, and how
often guesses of that kind and of that request were right (`acceptance`). Where no guess pays, as in
a full batch, none is made. Pure but for the clock that it is given; owned by the scheduler's side.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from meshinfer.core.draft import DraftNode, Horizon
from meshinfer.core.step import Sampled
from meshinfer.serve.acceptance import Acceptance
from meshinfer.serve.candidates import (
    Candidate,
    best_chain,
    chosen,
    is_chain,
    likeliest_first,
)
from meshinfer.serve.draft_book import DraftBook
from meshinfer.serve.guess_record import GuessRecord, learn_draft, learn_row
from meshinfer.serve.guessing import LEAST_REACH, Sources, candidates
from meshinfer.serve.lookup_drafts import LookupDrafts
from meshinfer.serve.patience import Patience
from meshinfer.serve.pick import Pick
from meshinfer.serve.row_choice import Coming, Cycle, RowChoice, best_rows, streamed_per_s
from meshinfer.serve.sequence import Sequence
from meshinfer.serve.speculation_figures import SpeculationFigures
from meshinfer.serve.step_cost import StepCost
from meshinfer.serve.verification import Verdict

MOST_DEPTH = 24
"""Tokens ahead of what is known that guesses may reach in one row."""

MOST_AHEAD = 16
"""Rows of one sequence that may be under way behind its first."""

_ALMOST_SURE = 0.97
_MOST_LEAST = 0.3
_BUSY = 4.0  # so that 0.25 is the least where four guesses fit into a round trip


@dataclass(frozen=True, slots=True)
class Company:
    """Who is served beside."""

    groups: int  # steps with decoding rows that should be under way
    flights: int  # steps that are
    has_waiting: bool  # requests wait for their turn


@dataclass(frozen=True, slots=True)
class SpeculationOptions:
    trees: bool = False  # all stages take token trees
    most_drafts: int = 48  # in one step, all sequences together
    shared_stage: int | None = None  # whose processor the draft model shares


@dataclass(frozen=True, slots=True)
class _Advice:
    """Guesses of every sequence, those that go along, the tokens per second expected."""

    pools: SequenceOf[SequenceOf[Candidate]]
    choice: RowChoice
    per_s: float
    coming: SequenceOf[Coming]  # what the draft model is about to add


class Speculation:
    """`clock` is monotonic seconds; it only bounds how long a step waits for drafts."""

    def __init__(
        self, cost: StepCost, options: SpeculationOptions, clock: Callable[[], float]
    ) -> None:
        self._cost = cost
        self._options = options
        self._sources = Sources(LookupDrafts(), Acceptance())
        self._records: dict[int, GuessRecord] = {}  # by id() of the sequence
        self.book = DraftBook()
        self.figures = SpeculationFigures()
        self._patience = Patience(self.book, clock)

    def begin_step(self) -> None:
        """Whether anything is held back is decided anew."""
        self._patience.begin_step()

    def held_s(self) -> float | None:
        """For how long the step that `guesses` held back may still wait; None: there is none."""
        return self._patience.held_s()

    def guesses(
        self, ready: SequenceOf[Sequence], company: Company
    ) -> list[tuple[Candidate, ...]] | None:
        """Drafts behind the last known token of each; None: better ones are worth a short wait."""
        asked = [one for one in ready if one.drafts is not None]
        told = self._told(asked, is_alone=len(ready) == 1)
        advised = self._advised([one for one in ready if one.drafts is None], company)
        if told is None or advised is None:
            return None
        found = told | advised
        guesses = [found[id(one)] for one in ready]
        for sequence, guess in zip(ready, guesses, strict=True):
            kind = "plain" if not guess else "chain" if is_chain(guess) else "tree"
            self.figures.decide(kind, len(guess))
            self._record(sequence).under_way = list(guess) if kind == "chain" else []
        return guesses

    def ahead(self, sequence: Sequence, company: Company) -> tuple[Candidate, ...]:
        """Drafts behind a row that is under way, where stages would stand idle and they are right
        often enough: a wrong one delays the next row by the time of one stage."""
        times = self._idle_times(company, flights=company.flights + 1)
        if (
            times is None
            or sequence.has_tree
            or sequence.in_flight > MOST_AHEAD
            or sequence.drafts is not None
        ):
            return ()
        one, two = times
        record = self._record(sequence)
        path = math.prod(candidate.chance for candidate in record.under_way)
        least = two / (one + two)
        pool = self._candidates(sequence, path) if path >= least else []
        places = [place for place in best_chain(pool) if pool[place].reach >= least]
        if len(places) < self._least_ahead(sequence, two):
            return ()
        guess = chosen(pool, places)
        record.under_way += guess
        self.figures.decide("ahead", len(guess))
        return guess

    def verified(self, pick: Pick, found: Verdict, taken: SequenceOf[Sampled]) -> None:
        """A row came back; `taken` of what was drawn counts."""
        sequence, tokens = pick.sequence, [one.token for one in taken]
        record, acceptance = self._record(sequence), self._sources.acceptance
        learn_row(acceptance, record, pick, found, tokens)
        if pick.row.decodes:
            accepted = len(tokens) - (0 if pick.is_ahead else 1)
            self.figures.verified(len(pick.guesses), max(0, accepted), len(tokens))
        mirror = self.book.mirror(sequence.key)
        if mirror is not None:
            learn_draft(acceptance, record, mirror, sequence)

    def ended(self, sequence: Sequence) -> None:
        """Answered, cancelled or failed. Idempotent."""
        self._records.pop(id(sequence), None)
        if sequence.finish is not None:
            self._sources.lookup.remember(sequence)
        else:
            self._sources.lookup.forget(sequence)

    def take(self, nodes: SequenceOf[tuple[int, DraftNode]], rows: int, seconds: float) -> int:
        """Guesses of one step of the draft model; how many are of use."""
        self.figures.drafted(rows, seconds)
        self._patience.observe(seconds)
        return self.book.take(nodes)

    def draft_lost(self) -> None:
        """Nothing more comes from the draft model."""
        self.book.clear()
        self._patience.level_s = 0.0

    def horizon(self, sequence: Sequence) -> Horizon:
        """Which guesses the draft model should make for it. Who is busy with one that is not needed
        when a row comes back is late with the next; in a long round trip there is time for unlikely
        ones before that. The number of guesses that fit into a round trip decides."""
        depth = min(MOST_DEPTH, sequence.drafts_allowed)
        round_trip_s = self._cost.round_trip(1)
        least = LEAST_REACH
        if sequence.drafts is None and round_trip_s:
            share = self._patience.level_s / round_trip_s
            least = min(_MOST_LEAST, max(least, _BUSY * share * share))
        record = self._record(sequence)
        record.horizon = Horizon(depth, least)
        return record.horizon

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

    def _told(
        self, asked: SequenceOf[Sequence], is_alone: bool
    ) -> dict[int, tuple[Candidate, ...]] | None:
        """Of requests that say how many drafts they want: one path each. Nobody waits for them."""
        guesses = {}
        for sequence in asked:
            pool = self._candidates(sequence, 1.0)
            chain = chosen(pool, best_chain(pool)[: sequence.drafts_allowed])
            record = self._record(sequence)
            if is_alone and self._patience.holds_for(sequence, record, chain):
                return None
            guesses[id(sequence)] = chain
        return guesses

    def _advised(
        self, ready: SequenceOf[Sequence], company: Company
    ) -> dict[int, tuple[Candidate, ...]] | None:
        """As many as bring the most tokens per second."""
        cycle = self._cycle(company.groups)
        if not ready or cycle is None or not self._may_pay(len(ready), cycle):
            return {id(one): () for one in ready}
        waiting = [(one, self._record(one)) for one in ready]
        found = self._best_of(waiting, cycle, company)
        if self._patience.holds(waiting, found.coming, found.choice, cycle, found.per_s):
            self.figures.decide("held")
            return None
        return {
            id(one): likeliest_first(chosen(pool, places))
            for one, pool, places in zip(ready, found.pools, found.choice.places, strict=True)
        }

    def _best_of(
        self, ready: SequenceOf[tuple[Sequence, GuessRecord]], cycle: Cycle, company: Company
    ) -> _Advice:
        """Paths, behind which more may follow while they are under way, or trees."""
        most = self._options.most_drafts
        pools = [self._candidates(one, 1.0) for one, _ in ready]
        chains = [chosen(pool, best_chain(pool)) for pool in pools]
        choice = best_rows(chains, cycle, most)
        per_s = choice.per_s
        draft_s = self._stream_s(company)
        coming = self._patience.coming(ready, pools)
        if draft_s is not None:
            streamed = streamed_per_s(choice, coming, draft_s, len(ready), cycle)
            per_s = max(per_s, streamed)
        if self._options.trees:
            trees = best_rows(pools, cycle, most)
            if trees.per_s > per_s:
                return _Advice(pools, trees, trees.per_s, coming)
        return _Advice(chains, choice, per_s, coming)

    def _stream_s(self, company: Company) -> float | None:
        """Seconds from one draft to the next, where rows may follow rows that are under way; None:
        stages have no time for that."""
        times = self._idle_times(company, flights=company.flights + 2)
        if times is None or not self._patience.level_s:
            return None
        shared = self._options.shared_stage
        beside_s = 0.0 if shared is None else self._cost.stage_seconds(shared, 1) or 0.0
        return max(times[1], self._patience.level_s + beside_s)

    def _idle_times(self, company: Company, flights: int) -> tuple[float, float] | None:
        """Seconds of a round trip and of the slowest stage, for one row; None: stages have no time
        for so many steps, or somebody else waits for it."""
        one, two = self._cost.round_trip(1), self._cost.slowest(1)
        if one is None or two is None or company.has_waiting or flights * two > one:
            return None
        return one, two

    def _candidates(self, sequence: Sequence, path: float) -> list[Candidate]:
        return candidates(
            self._sources,
            sequence,
            self._record(sequence).own,
            self.book.mirror(sequence.key),
            path,
            min(MOST_DEPTH, sequence.drafts_allowed - len(sequence.guess)),
        )

    def _least_ahead(self, sequence: Sequence, slowest_s: float) -> int:
        """Drafts that make a row ahead worth its step: as many as come while a stage computes two
        of them, as a stage is busy for everybody else, too."""
        mirror = self.book.mirror(sequence.key)
        if mirror is None or not mirror.heard or not self._patience.level_s:
            return 1
        return max(1, min(4, round(2 * slowest_s / self._patience.level_s)))

    def _record(self, sequence: Sequence) -> GuessRecord:
        return self._records.setdefault(id(sequence), GuessRecord())
