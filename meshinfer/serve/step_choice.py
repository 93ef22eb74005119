"""Which rows make one step. Pure; called by the scheduler.

Decoding rows come first; prompt chunks fill what the slowest stage can take without stretching the
others' time between tokens by more than `COMPANY_STRETCH`.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshinfer.core.step import Opening, Row
from meshinfer.errors import InvalidRequest
from meshinfer.serve.candidates import Candidate, is_chain
from meshinfer.serve.guess_masks import masked
from meshinfer.serve.pick import Pick
from meshinfer.serve.roster import Roster
from meshinfer.serve.sequence import Sequence, SequenceState
from meshinfer.serve.speculation import Company, Speculation
from meshinfer.serve.step_cost import StepCost

COMPANY_STRETCH = 1.9
"""The time between two tokens of a user may grow so many times while others' prompts are computed:
half of the time goes to the prompts."""

LEAST_CHUNK = 4
"""Prompt tokens that a step carries in any case, or a prompt would never end."""

FIRST_PROMPT_SHARE = 0.75
"""Of the tokens for prompts, the one whose turn it is gets at least this; the shortest others share
the rest, so that a short question does not wait for a whole book."""


@dataclass(frozen=True, slots=True)
class Flights:
    """Steps that are under way."""

    all: int
    decoding: int  # of them, those with rows that are no prompt, and not ahead of another row


@dataclass(frozen=True, slots=True)
class StepLimits:
    step_tokens: int = 256  # most new tokens in one step
    step_rows: int = 256


class StepChoice:
    """One step in the making. Each row counts as cached as soon as it is taken."""

    def __init__(
        self,
        roster: Roster,
        cost: StepCost,
        limits: StepLimits,
        speculation: Speculation | None = None,
    ) -> None:
        self._roster = roster
        self._cost = cost
        self._limits = limits
        self._speculation = speculation
        self.chosen: list[Pick] = []
        self.failed: list[tuple[Sequence, InvalidRequest]] = []  # their grammars gave up

    def make(self, flights: Flights) -> None:
        """Fill `chosen`, beside what is in flight.

        As many steps with decoding rows fly as there are groups: one that is ready while they do
        waits and joins the next, so that users who began apart share a step. Prompts may fill the
        stages beyond that, and so may guesses behind what is under way.
        """
        decoding = [one for one in self._roster.running if one.decodes]
        groups = self._cost.groups(len(decoding)) if decoding else 0
        share = -(-len(decoding) // groups) if groups else 0
        company = Company(groups, flights.all, bool(self._roster.waiting))
        if flights.decoding < groups:
            self._add_decoding(decoding, share, company)
        if not self.chosen and self._speculation is not None:
            self._add_ahead(decoding, company, self._speculation)
        # Where nobody else is delayed by it, one more chunk than stages flies: the first stage then
        # has the next one at hand.
        stages = self._cost.stages
        if self.chosen or flights.all < stages + (stages > 1 and not share):
            self._add_prompts(share)

    def _add_decoding(self, decoding: list[Sequence], share: int, company: Company) -> None:
        ready = self._ready(decoding, share)
        guesses: list[tuple[Candidate, ...]] | None = [()] * len(ready)
        if self._speculation is not None and ready:
            guesses = self._speculation.guesses(ready, company)
        if guesses is None:
            return  # the drafts that are on their way are worth the wait
        for sequence, guess in zip(ready, guesses, strict=True):
            self._add_guessed(sequence, guess)

    def _ready(self, decoding: list[Sequence], share: int) -> list[Sequence]:
        """The `share` that wait longest, of those that have room for their next token."""
        waiting = sorted(
            (one for one in decoding if one.pending == 1 and not one.in_flight),
            key=lambda one: one.ready_since,
        )
        found: list[Sequence] = []
        for sequence in waiting:
            if len(found) < share and sequence.is_running and self._roster.room_for(sequence, 1):
                found.append(sequence)
        return [one for one in found if one.is_running]  # a later one may have robbed it

    def _add_guessed(self, sequence: Sequence, guess: tuple[Candidate, ...]) -> None:
        """Its last known token, and drafts as far as there is room without anybody giving way."""
        if self._is_full or not sequence.is_running:  # it gave its cache to one before it
            return
        if guess and self._roster.spare_tokens(sequence, 1 + len(guess)) < 1 + len(guess):
            guess = ()
        if not self._roster.room_for(sequence, 1 + len(guess)):
            return
        self._take_guessed(sequence, (sequence.tokens[-1],), guess)

    def _add_ahead(
        self, decoding: list[Sequence], company: Company, speculation: Speculation
    ) -> None:
        """Drafts behind what is under way, while stages would stand idle."""
        busy = [one for one in decoding if one.in_flight and not one.pending > 0]
        for sequence in busy:
            guess = speculation.ahead(sequence, company)
            if not guess or self._is_full:
                continue
            if self._roster.spare_tokens(sequence, len(guess)) == len(guess):
                self._take_guessed(sequence, (), guess)

    @property
    def _is_full(self) -> bool:
        return len(self.chosen) >= self._limits.step_rows

    def _add_prompts(self, share: int) -> None:
        """Add prompt chunks to the step's decoding rows."""
        waiting = self._roster.waiting
        prompts = [one for one in self._roster.running if not one.decodes and one.pending]
        if not prompts and not waiting:
            return
        others = sorted(prompts[1:], key=lambda one: one.pending)
        pending = prompts[0].pending if prompts else waiting.tokens
        budget = self._prompt_tokens(pending, share)
        wanted = sum(one.pending for one in others) + (waiting.tokens if prompts else 0)
        reserved = min(wanted, int(budget * (1 - FIRST_PROMPT_SHARE)))
        for sequence in prompts[:1]:
            budget -= self._add(sequence, budget - reserved)
        for sequence in others:
            budget -= self._add(sequence, budget)
        # A few prompts under way at once are enough; more would only be interrupted.
        room = 2 * self._cost.stages + 2 - len(prompts)
        while budget > 0 and room > 0 and (taken := self._start_next(budget)):
            budget -= taken
            room -= 1

    def _prompt_tokens(self, pending: int, share: int) -> int:
        """How many prompt tokens this step may carry."""
        rows = sum(pick.row.count for pick in self.chosen)
        most = max(0, self._limits.step_tokens - rows)
        if share:
            beside = self._cost.tokens_beside(rows, share, COMPANY_STRETCH, most)
            return min(most, max(LEAST_CHUNK, beside))
        return self._cost.prompt_chunk(pending, most)

    def _start_next(self, budget: int) -> int:
        """Start the next waiting sequence that may, with its first chunk; tokens taken."""
        if not self._roster.waiting or self._is_full:
            return 0
        started = self._roster.start_next()
        if started is None:
            return 0
        sequence, fork = started
        count = min(sequence.pending, budget)
        self._take(sequence, count, fork)
        return count

    def _add(self, sequence: Sequence, budget: int) -> int:
        """A prompt's next tokens; how many were taken. One just robbed of its cache takes none."""
        count = min(sequence.pending, budget)
        if count < 1 or self._is_full or sequence.state is not SequenceState.RUNNING:
            return 0
        if not self._roster.room_for(sequence, count):
            return 0
        self._take(sequence, count)
        return count

    def _take(self, sequence: Sequence, count: int, fork: int | None = None) -> None:
        """The next `count` tokens of a sequence become a row, on their way from now on."""
        logits = 1 if count == sequence.pending else 0
        mask = b""
        if logits and sequence.constraint is not None:
            try:
                mask = sequence.constraint.mask()
            except InvalidRequest as error:
                self.failed.append((sequence, error))
                return
        position = sequence.scheduled
        row = Row(sequence.key, position, count, logits, sequence.sampling, fork, mask)
        self._note(Pick(row, sequence, _known(sequence, position, count), sequence.turn))

    def _take_guessed(
        self, sequence: Sequence, known: tuple[int, ...], guess: tuple[Candidate, ...]
    ) -> None:
        """A row of the last known token (unless it is under way) and the drafts behind it."""
        try:
            masks, guess = masked(sequence, known, guess)
        except InvalidRequest as error:
            self.failed.append((sequence, error))
            return
        tokens = (*known, *(one.token for one in guess))
        if not tokens:
            return
        row = Row(
            sequence=sequence.key,
            position=sequence.scheduled,
            count=len(tokens),
            logits=len(tokens),
            sampling=sequence.sampling,
            mask=masks,
            parents=() if is_chain(guess) else (-1, *(one.parent + 1 for one in guess)),
            kept=sequence.kept,
        )
        if row.parents:
            sequence.has_tree = True
        else:
            sequence.guess += [one.token for one in guess]
        self._note(Pick(row, sequence, tokens, sequence.turn, guess, is_ahead=not known))

    def _note(self, pick: Pick) -> None:
        """Its tokens are on their way from now on."""
        row, sequence = pick.row, pick.sequence
        kept = len(row.kept)
        self._roster.shelf.note(row.sequence, row.position, row.count, row.fork_from, kept)
        self.chosen.append(pick)
        sequence.kept = ()
        sequence.scheduled += row.count
        sequence.in_flight += 1


def openings(chosen: list[Pick]) -> tuple[Opening, ...]:
    """What stages must be told of new sequences, where their rows do not say all."""
    return tuple(
        Opening(row.sequence, one.prompt_length, one.sampling.bias)
        for row, one in ((pick.row, pick.sequence) for pick in chosen)
        if (row.position == 0 or row.fork_from is not None) and _is_special(one)
    )


def _known(sequence: Sequence, position: int, count: int) -> tuple[int, ...]:
    return tuple(sequence.tokens[position : position + count])


def _is_special(sequence: Sequence) -> bool:
    sampling = sequence.sampling
    penalties = (sampling.presence_penalty, sampling.frequency_penalty)
    return bool(sampling.bias) or any(penalties) or sampling.repetition_penalty != 1.0
