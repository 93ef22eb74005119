"""Which step is next, and what its return changes. Pure: no clock, no I/O.

Requests join and leave at every step. Running sequences are dealt into as many steps in flight as
keep all stages and hops busy (`StepCost.groups`); `step_choice` fills each. Cache is counted in
blocks as it fills; finished sequences stay as prefixes for later prompts until their room is needed
(`shelf`); when even that is not enough, the last sequence in turn gives up its cache and is
computed again from its tokens (`roster`).
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from meshinfer.core.step import Sampled, Step
from meshinfer.errors import InvalidRequest, Overloaded
from meshinfer.serve.pick import Pick
from meshinfer.serve.roster import Roster
from meshinfer.serve.sequence import Sequence, SequenceState
from meshinfer.serve.shelf import Shelf
from meshinfer.serve.speculation import Speculation
from meshinfer.serve.step_choice import Flights, StepChoice, StepLimits, openings
from meshinfer.serve.step_cost import StepCost
from meshinfer.serve.verification import Verdict, verdict


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """What the plan allows."""

    cache_tokens: int  # on every stage, all sequences together
    block_size: int  # largest cache block of the plan's engines, in tokens: usage is rounded up
    step: StepLimits = StepLimits()
    waiting: int = 256  # requests that may wait
    waiting_tokens: int = 1 << 20  # of their prompts together


@dataclass(frozen=True, slots=True)
class Advance:
    """What a step brought to one sequence."""

    sequence: Sequence
    drawn: tuple[Sampled, ...]


class Scheduler:
    """Owns every Sequence's state. `cost` learns of the steps elsewhere; without `speculation`
    nothing is ever guessed."""

    def __init__(
        self, limits: SchedulerLimits, cost: StepCost, speculation: Speculation | None = None
    ) -> None:
        self._limits = limits
        self._cost = cost
        self._speculation = speculation
        self._shelf = Shelf(limits.cache_tokens // limits.block_size, limits.block_size)
        self._roster = Roster(self._shelf)
        self._flights: dict[int, list[Pick]] = {}
        self._failed: list[tuple[Sequence, InvalidRequest]] = []
        self._is_draining = False  # no new steps until those in flight are back
        self._next_step = 0
        self._commits = 0

    @property
    def running(self) -> int:
        return len(self._roster.running)

    @property
    def waiting(self) -> int:
        return len(self._roster.waiting)

    @property
    def in_flight(self) -> int:
        return len(self._flights)

    @property
    def cache_used(self) -> float:
        """Share of the cache that running sequences fill, 0..1."""
        return 1.0 - self._shelf.available() / max(1, self._shelf.book.block_count)

    @property
    def cache_kept(self) -> float:
        """Share of the cache that only holds prefixes for later prompts; it is free when needed."""
        book = self._shelf.book
        return (self._shelf.available() - book.free) / max(1, book.block_count)

    @property
    def running_sequences(self) -> SequenceOf[Sequence]:
        """In the order of their starts."""
        return self._roster.running

    def renew(self) -> dict[int, int]:
        """Tokens of everything that stages should hold once all steps are done: they are told so,
        behind the steps that went out, and forget what is more."""
        lengths = self._roster.lengths
        self._shelf.cut(lengths)
        return lengths

    def held_s(self) -> float | None:
        """For how long the next step still waits for drafts; None: nothing is held back."""
        return None if self._speculation is None else self._speculation.held_s()

    def inherit(self, held: Iterable[tuple[int, list[int]]]) -> None:
        """Sequences that all stages hold from an older plan, as prefixes. Before the first step."""
        self._roster.inherit(held)

    def admit(self, *sequences: Sequence) -> None:
        """Queue the answers of a request, all or none. Raises Overloaded when too many wait."""
        limits, waiting = self._limits, self._roster.waiting
        tokens = sum(len(one.tokens) for one in sequences)
        if waiting and (
            len(waiting) + len(sequences) > limits.waiting
            or waiting.tokens + tokens > limits.waiting_tokens
        ):
            raise Overloaded(f"{len(waiting)} requests wait already.", "Try again later.")
        for one in sequences:
            waiting.add(one)

    def end(self, sequence: Sequence) -> None:
        """Answered, cancelled or failed: never computed again. Idempotent.

        The cache of an answer is kept as a prefix; that of any other goes with the next step.
        """
        self._roster.end(sequence)
        if self._speculation is not None:
            self._speculation.ended(sequence)

    def take_failed(self) -> list[tuple[Sequence, InvalidRequest]]:
        """Sequences that ended by themselves since the last call, with the reason."""
        failed, self._failed = self._failed, []
        return failed

    def next_step(self) -> Step | None:
        """The next rows to compute, or None: nothing is ready or enough steps are in flight.

        A step without rows only tells stages what ended, when nothing else would.
        """
        self._is_draining = self._is_draining and bool(self._flights)
        if self._is_draining:
            return None
        chosen = self._choose()
        if not chosen and (self._flights or not self._shelf.has_released):
            return None
        rows = tuple(pick.row for pick in chosen)
        tokens = [token for pick in chosen for token in pick.tokens]
        released = self._shelf.take_released()
        step = Step(self._next_step, rows, tuple(tokens), released, openings(chosen))
        self._flights[step.number] = chosen
        self._next_step += 1
        return step

    def expects(self, step: int) -> int:
        """Tokens that must come back for a step in flight. Raises KeyError for any other."""
        return sum(pick.row.logits for pick in self._flights[step])

    def commit(self, step: int, drawn: SequenceOf[Sampled]) -> list[Advance]:
        """Give each row of a returned step its tokens, in row order; end what is finished."""
        advances = []
        taken = 0
        self._commits += 1
        for pick in self._flights.pop(step):
            sequence, row = pick.sequence, pick.row
            sequence.in_flight -= 1
            own = drawn[taken : taken + row.logits]
            taken += row.logits
            if not pick.is_current:
                self._note_stale()
                continue  # cancelled, or guessed wrong, while the step was under way
            sequence.ready_since = self._commits
            if not own:
                sequence.confirmed = row.position + row.count
            elif kept := self._accept(pick, own):
                advances.append(Advance(sequence, kept))
        return advances

    def fail(self, step: int) -> tuple[Sequence, ...]:
        """A stage could not compute this step: its living sequences, which the caller ends."""
        sequences = [pick.sequence for pick in self._flights.pop(step)]
        for one in sequences:
            one.in_flight -= 1
        return tuple(one for one in sequences if one.state is not SequenceState.FINISHED)

    def recompute(self, step: int, lost: Iterable[int]) -> None:
        """A stage refused this step, as it does not hold the sequences `lost`: they are computed
        again from their tokens, and the step's other rows once more."""
        self._is_draining = True  # or steps would build on what is being computed again
        gone = set(lost)
        self._shelf.lost(gone)
        for pick in self._flights.pop(step):
            sequence, row = pick.sequence, pick.row
            sequence.in_flight -= 1
            sequence.has_tree = False
            if not pick.is_current:
                # an earlier row of it was refused already, or guessed wrong: no wonder
                gone.discard(row.sequence)
            elif row.sequence in gone or row.fork_from is not None:
                self._roster.give_up(sequence)
            else:
                # A branch that some stages have moved already is computed again by all of them.
                self._roster.rewind(sequence, row.position - len(row.kept))
        for sequence in [one for one in self._roster.running if one.key in gone]:
            self._roster.give_up(sequence)

    def _choose(self) -> list[Pick]:
        self._shelf.begin_step()
        if self._speculation is not None:
            self._speculation.begin_step()
        choice = StepChoice(self._roster, self._cost, self._limits.step, self._speculation)
        flights = list(self._flights.values())
        choice.make(
            Flights(
                all=len(flights),
                decoding=sum(
                    any(pick.row.decodes and not pick.is_ahead for pick in flight)
                    for flight in flights
                ),
            )
        )
        for sequence, error in choice.failed:
            self._fail(sequence, error)
        return choice.chosen

    def _accept(self, pick: Pick, drawn: SequenceOf[Sampled]) -> tuple[Sampled, ...]:
        """What counts of the tokens drawn for a row; nothing when the grammar gave up."""
        sequence, row = pick.sequence, pick.row
        if not row.decodes:  # the end of a prompt
            found = Verdict((0,))
            length = row.position + row.count - 1
        else:
            found = verdict(pick.tokens, row.parents, [one.token for one in drawn])
            length = row.position
        taken: list[Sampled] = []
        try:
            for place in found.places:
                taken.append(drawn[place])
                sequence.append(drawn[place].token)
                if sequence.finish is not None:
                    break
        except InvalidRequest as error:
            self._fail(sequence, error)
            return ()
        _settle(pick, length, found.first(len(taken)))
        if self._speculation is not None:
            self._speculation.verified(pick, found, taken)
        if sequence.finish is not None:
            self.end(sequence)
        return tuple(taken)

    def _note_stale(self) -> None:
        if self._speculation is not None:
            self._speculation.figures.stale += 1

    def _fail(self, sequence: Sequence, error: InvalidRequest) -> None:
        self.end(sequence)
        self._failed.append((sequence, error))


def _settle(pick: Pick, first: int, found: Verdict) -> None:
    """What the cache holds of a sequence after its row from slot `first` on was verified."""
    sequence = pick.sequence
    length = first + len(found.places)
    sequence.confirmed = first + found.in_place
    if pick.row.parents:
        sequence.has_tree = False
        sequence.kept = tuple(first + place for place in found.places[found.in_place :])
        sequence.scheduled = length
        return
    sent = sequence.guess
    new = sequence.tokens[first + 1 :]
    if sequence.finish is None and sent[: len(new)] == new:
        sequence.guess = sent[len(new) :]
    elif sequence.finish is None and sent[: len(new)] == new[: len(sent)]:
        sequence.guess = []
    else:
        sequence.forget_guess(length)
