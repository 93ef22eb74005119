"""Which rows make the next step. Pure: no clock, no I/O.

Requests join and leave at every step. Running sequences are dealt into as many steps in flight as
keep all stages and hops busy (`StepCost.groups`). Decoding rows come first; prompt chunks fill what
the slowest stage can take without stretching the others' time between tokens by more than
`COMPANY_STRETCH`. Cache is counted in blocks as it fills (`CacheBook`); finished sequences stay as
prefixes for later prompts until their room is needed (`PrefixCache`); when even that is not enough,
the last sequence in turn gives up its cache and is computed again from its tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from meshinfer.core.step import Opening, Row, Sampled, Step
from meshinfer.errors import InvalidRequest, Overloaded
from meshinfer.serve.cache_book import CacheBook
from meshinfer.serve.prefix_cache import PrefixCache, common_length
from meshinfer.serve.sequence import Sequence, SequenceState
from meshinfer.serve.step_cost import StepCost
from meshinfer.serve.waiting_queue import WaitingQueue

COMPANY_STRETCH = 2.0
"""A step with a prompt chunk may take so many times as long as one without: half of the time goes
to the prompt, and the others' tokens come at half their speed at worst."""

FIRST_PROMPT_SHARE = 0.75
"""Of the tokens for prompts, the one whose turn it is gets at least this; the shortest others share
the rest, so that a short question does not wait for a whole book."""

WORTH_SHARING = 8
"""Tokens; below it a fork costs more than computing them."""

WORTH_WAITING = 64
"""Tokens that a prompt waits for when another with the same beginning is computed just now."""


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """What the plan allows."""

    cache_tokens: int  # on every stage, all sequences together
    block_size: int  # largest cache block of the plan's engines, in tokens: usage is rounded up
    step_tokens: int = 256  # most new tokens in one step
    step_rows: int = 256
    waiting: int = 256  # requests that may wait
    waiting_tokens: int = 1 << 20  # of their prompts together


@dataclass(frozen=True, slots=True)
class Advance:
    """What a step brought to one sequence."""

    sequence: Sequence
    drawn: tuple[Sampled, ...]


class Scheduler:
    """Owns every Sequence's state. `cost` learns of the steps elsewhere."""

    def __init__(self, limits: SchedulerLimits, cost: StepCost) -> None:
        self._limits = limits
        self._cost = cost
        self._book = CacheBook(limits.cache_tokens // limits.block_size, limits.block_size)
        self._prefixes = PrefixCache()
        self._waiting = WaitingQueue()
        self._running: list[Sequence] = []  # in the order of their starts
        self._flights: dict[int, list[tuple[Row, Sequence]]] = {}
        self._released: list[int] = []
        self._failed: list[tuple[Sequence, InvalidRequest]] = []
        self._sources: set[int] = set()  # what rows of the step that is being made fork from
        self._is_draining = False  # no new steps until those in flight are back
        self._next_step = 0
        self._next_key = 0
        self._commits = 0

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def in_flight(self) -> int:
        return len(self._flights)

    @property
    def cache_used(self) -> float:
        """Share of the cache that running sequences fill, 0..1."""
        return 1.0 - self._available() / max(1, self._book.block_count)

    @property
    def cache_kept(self) -> float:
        """Share of the cache that only holds prefixes for later prompts; it is free when needed."""
        return (self._available() - self._book.free) / max(1, self._book.block_count)

    @property
    def lengths(self) -> dict[int, int]:
        """Tokens of everything that stages should hold once all steps are done."""
        living = {one.key: one.scheduled for one in self._running if one.scheduled}
        return living | {key: len(tokens) for key, tokens in self._prefixes.items()}

    def inherit(self, held: Iterable[tuple[int, list[int]]]) -> None:
        """Sequences that all stages hold from an older plan, as prefixes. Before the first step."""
        for key, tokens in held:
            self._next_key = max(self._next_key, key)
            room = self._book.free * self._limits.block_size
            if tokens and room >= len(tokens):
                self._book.note(key, 0, len(tokens))
                self._release(*self._prefixes.keep(key, tokens))

    def admit(self, *sequences: Sequence) -> None:
        """Queue the answers of a request, all or none. Raises Overloaded when too many wait."""
        limits, tokens = self._limits, sum(len(one.tokens) for one in sequences)
        if self._waiting and (
            len(self._waiting) + len(sequences) > limits.waiting
            or self._waiting.tokens + tokens > limits.waiting_tokens
        ):
            raise Overloaded(f"{len(self._waiting)} requests wait already.", "Try again later.")
        for one in sequences:
            self._waiting.add(one)

    def end(self, sequence: Sequence) -> None:
        """Answered, cancelled or failed: never computed again. Idempotent.

        The cache of an answer is kept as a prefix; that of any other goes with the next step.
        """
        if sequence.state is SequenceState.WAITING:
            self._waiting.remove(sequence)
        elif sequence.state is SequenceState.RUNNING:
            self._running.remove(sequence)
            if sequence.scheduled:  # else no stage has heard of it
                if sequence.finish is None:
                    self._release(sequence.key)
                else:
                    cached = sequence.tokens[: sequence.scheduled]
                    self._release(*self._prefixes.keep(sequence.key, cached))
        sequence.state = SequenceState.FINISHED

    def next_step(self) -> Step | None:
        """The next rows to compute, or None: nothing is ready or enough steps are in flight.

        A step without rows only tells stages what ended, when nothing else would.
        """
        self._is_draining = self._is_draining and bool(self._flights)
        if self._is_draining:
            return None
        self._sources = set()
        flights = self._choose() if len(self._flights) < self._most_flights() else []
        if not flights and (self._flights or not self._released):
            return None
        tokens: list[int] = []
        for row, sequence in flights:
            tokens += sequence.tokens[row.position : row.position + row.count]
        step = Step(
            number=self._next_step,
            rows=tuple(row for row, _ in flights),
            tokens=tuple(tokens),
            released=tuple(self._released),
            openings=tuple(_opening(row, one) for row, one in flights if _opens(row, one)),
        )
        self._released = []
        self._flights[step.number] = flights
        self._next_step += 1
        return step

    def expects(self, step: int) -> int:
        """Tokens that must come back for a step in flight. Raises KeyError for any other."""
        return sum(row.logits for row, _ in self._flights[step])

    def commit(self, step: int, drawn: SequenceOf[Sampled]) -> list[Advance]:
        """Give each row of a returned step its tokens, in row order; end what is finished."""
        advances = []
        taken = 0
        self._commits += 1
        for row, sequence in self._flights.pop(step):
            sequence.in_flight -= 1
            own = drawn[taken : taken + row.logits]
            taken += row.logits
            if sequence.state is SequenceState.FINISHED or row.sequence != sequence.key:
                continue  # cancelled while the step was under way
            sequence.ready_since = self._commits
            sequence.confirmed = row.position + row.count
            if own and self._append(sequence, own):
                advances.append(Advance(sequence, tuple(own)))
        return advances

    def _append(self, sequence: Sequence, drawn: SequenceOf[Sampled]) -> bool:
        """False when its grammar gave up: it has failed."""
        try:
            for one in drawn:
                sequence.append(one.token)
        except InvalidRequest as error:
            self._fail(sequence, error)
            return False
        if sequence.finish is not None:
            self.end(sequence)
        return True

    def take_failed(self) -> list[tuple[Sequence, InvalidRequest]]:
        """Sequences that ended by themselves since the last call, with the reason."""
        failed, self._failed = self._failed, []
        return failed

    def _fail(self, sequence: Sequence, error: InvalidRequest) -> None:
        self.end(sequence)
        self._failed.append((sequence, error))

    def fail(self, step: int) -> tuple[Sequence, ...]:
        """A stage could not compute this step: its living sequences, which the caller ends."""
        flights = self._flights.pop(step)
        for _, sequence in flights:
            sequence.in_flight -= 1
        return tuple(one for _, one in flights if one.state is not SequenceState.FINISHED)

    def recompute(self, step: int, lost: Iterable[int]) -> None:
        """A stage refused this step, as it does not hold the sequences `lost`: they are computed
        again from their tokens, and the step's other rows once more."""
        self._is_draining = True  # or steps would build on what is being computed again
        gone = set(lost)
        for key in gone:
            if self._prefixes.forget(key):
                self._release(key)
        for row, sequence in self._flights.pop(step):
            sequence.in_flight -= 1
            if sequence.state is not SequenceState.RUNNING or row.sequence != sequence.key:
                continue
            if row.position > sequence.scheduled:
                gone.discard(row.sequence)  # an earlier row of it was refused already: no wonder
            elif row.sequence in gone or row.fork_from is not None:
                self._give_up(sequence)
            else:
                sequence.scheduled = row.position
                self._book.cut(sequence.key, row.position)
        for sequence in [one for one in self._running if one.key in gone]:
            self._give_up(sequence)

    def _most_flights(self) -> int:
        decoding = sum(one.decodes for one in self._running)
        if not decoding:
            # One more chunk than stages, so that the first stage has the next one at hand.
            return self._cost.stages + (self._cost.stages > 1)
        return max(self._cost.stages, self._cost.groups(decoding))

    def _choose(self) -> list[tuple[Row, Sequence]]:
        """Rows for one step. Each counts as cached as soon as it is taken."""
        decoding = [one for one in self._running if one.decodes]
        share = -(-len(decoding) // self._cost.groups(len(decoding))) if decoding else 0
        ready = sorted(
            (one for one in decoding if one.pending and not one.in_flight),
            key=lambda one: one.ready_since,
        )
        chosen: list[tuple[Row, Sequence]] = []
        for sequence in ready:
            if len(chosen) == min(share, self._limits.step_rows):
                break
            if sequence.state is SequenceState.RUNNING and self._room_for(sequence, 1):
                self._take(chosen, sequence, 1)
        self._choose_prompts(chosen, share)
        return chosen

    def _choose_prompts(self, chosen: list[tuple[Row, Sequence]], share: int) -> None:
        """Add prompt chunks to the step's decoding rows."""
        prompts = [one for one in self._running if not one.decodes and one.pending]
        others = sorted(prompts[1:], key=lambda one: one.pending)
        if not prompts and not self._waiting:
            return
        pending = prompts[0].pending if prompts else self._waiting.tokens
        budget = self._prompt_tokens(pending, len(chosen), share)
        wanted = sum(one.pending for one in others) + (self._waiting.tokens if prompts else 0)
        reserved = min(wanted, int(budget * (1 - FIRST_PROMPT_SHARE)))
        for sequence in prompts[:1]:
            budget -= self._add_chunk(chosen, sequence, budget - reserved)
        for sequence in others:
            budget -= self._add_chunk(chosen, sequence, budget)
        under_way = len(prompts)
        while budget > 0 and under_way < 2 * self._cost.stages + 2:
            taken = self._start_next(chosen, budget)
            if not taken:
                return
            budget -= taken
            under_way += 1

    def _prompt_tokens(self, pending: int, rows: int, share: int) -> int:
        """How many prompt tokens this step may carry."""
        most = self._limits.step_tokens - rows
        if share:
            beside = self._cost.tokens_beside(rows, share, COMPANY_STRETCH, most)
            return min(most, max(WORTH_SHARING, beside))
        return self._cost.prompt_chunk(pending, most)

    def _add_chunk(
        self, chosen: list[tuple[Row, Sequence]], sequence: Sequence, budget: int
    ) -> int:
        """Tokens taken. A sequence that was just robbed of its cache takes none."""
        count = min(sequence.pending, budget)
        full = len(chosen) >= self._limits.step_rows
        if count < 1 or full or sequence.state is not SequenceState.RUNNING:
            return 0
        if not self._room_for(sequence, count):
            return 0
        self._take(chosen, sequence, count)
        return count

    def _start_next(self, chosen: list[tuple[Row, Sequence]], budget: int) -> int:
        """Start the next waiting sequence that may, with its first chunk; tokens taken."""
        if not self._waiting or len(chosen) >= self._limits.step_rows:
            return 0
        for sequence in self._waiting.in_turn():
            source, length = self._source_for(sequence)
            if length < 0:
                continue
            fork = source if length else None
            if fork is not None and not self._fits(sequence, length, fork):
                length, fork = 0, None  # the source itself may have to go for it
            if fork is None and not self._fits(sequence, 0, None):
                return 0  # nobody smaller goes first, or the large ones would starve
            self._start(sequence, length)
            count = min(sequence.pending, budget)
            self._take(chosen, sequence, count, fork)
            return count
        return 0

    def _source_for(self, sequence: Sequence) -> tuple[int, int]:
        """(key, tokens) of the cached sequence that begins most alike; -1 tokens: it pays to wait
        for one that is being computed."""
        tokens = sequence.tokens[:-1]  # the last one is computed in any case: its logits are wanted
        key, length = self._prefixes.longest(tokens)
        coming = 0
        for other in self._running:
            alike = common_length(other.tokens, tokens)
            # Only what came back is sure to be there: a fork from what is lost on its way would
            # be lost too, and the next one from that.
            cached = min(alike, other.confirmed)
            if cached > length:
                key, length = other.key, cached
            coming = max(coming, alike)
        if length < WORTH_SHARING:
            key, length = 0, 0
        worth = 1 if coming == len(tokens) else WORTH_WAITING
        return (0, -1) if coming >= length + worth else (key, length)

    def _fits(self, sequence: Sequence, length: int, fork: int | None) -> bool:
        """Make room for all tokens that it has now, and leave every running one a block to grow
        by. Alone it starts in any case: its context fits the cache."""
        tokens = len(sequence.tokens) + 1 - length
        needed = self._book.needed(sequence.key, length, tokens, fork) + len(self._running)
        if not self._running:
            needed = min(needed, self._book.block_count)
        if self._available(spare=fork) < needed:
            return False
        return self._make_room(needed, spare=fork)

    def _start(self, sequence: Sequence, length: int) -> None:
        """It runs from now on, under a name that no frame has carried yet."""
        self._waiting.take(sequence)
        self._next_key += 1
        sequence.key = self._next_key
        sequence.state = SequenceState.RUNNING
        sequence.scheduled = length
        if not sequence.drawn:
            sequence.cached = length
        self._running.append(sequence)

    def _take(
        self,
        chosen: list[tuple[Row, Sequence]],
        sequence: Sequence,
        count: int,
        fork: int | None = None,
    ) -> None:
        """The next `count` tokens of a sequence become a row, on their way from now on."""
        logits = 1 if count == sequence.pending else 0
        mask = b""
        if logits and sequence.constraint is not None:
            try:
                mask = sequence.constraint.mask()
            except InvalidRequest as error:
                self._fail(sequence, error)
                return
        if fork is not None:
            self._sources.add(fork)
            self._prefixes.touch(fork)
        self._book.note(sequence.key, sequence.scheduled, count, fork)
        sampling, position = sequence.sampling, sequence.scheduled
        row = Row(sequence.key, position, count, logits, sampling, fork, mask)
        chosen.append((row, sequence))
        sequence.scheduled += count
        sequence.in_flight += 1

    def _room_for(self, sequence: Sequence, count: int) -> bool:
        """Make room for `count` more tokens, if need be at the cost of later sequences."""
        while True:
            needed = self._book.needed(sequence.key, sequence.scheduled, count)
            if self._make_room(needed):
                return True
            if not self._rob(sequence):
                return False

    def _available(self, spare: int | None = None) -> int:
        """Blocks that are free or only hold prefixes."""
        kept = [key for key in self._prefixes.keys if key != spare and key not in self._sources]
        return self._book.free + (self._book.only_in(kept) if kept else 0)

    def _make_room(self, needed: int, spare: int | None = None) -> bool:
        """Have `needed` blocks free, at the cost of kept prefixes only."""
        while self._book.free < needed:
            key = self._prefixes.evict(self._sources | {spare})
            if key is None:
                return False
            self._release(key)
        return True

    def _rob(self, keep: Sequence) -> bool:
        """Take the cache from the last idle sequence in turn that comes after `keep`."""
        turns = {id(one): (one.priority, place) for place, one in enumerate(self._running)}
        for victim in sorted(self._running, key=lambda one: turns[id(one)], reverse=True):
            if victim is keep:
                return False
            if victim.in_flight == 0 and victim.scheduled and victim.key not in self._sources:
                self._give_up(victim)
                return True
        return False

    def _give_up(self, sequence: Sequence) -> None:
        """Its cache goes; it will be computed again from its tokens, under another name."""
        self._running.remove(sequence)
        self._release(sequence.key)
        sequence.key = 0
        sequence.scheduled = sequence.confirmed = 0
        sequence.state = SequenceState.WAITING
        self._waiting.add(sequence, returned=True)

    def _release(self, *keys: int) -> None:
        for key in keys:
            self._book.release(key)
            self._released.append(key)


def _opens(row: Row, sequence: Sequence) -> bool:
    """Whether stages must be told more of this sequence than its rows say."""
    sampling = sequence.sampling
    penalties = (sampling.presence_penalty, sampling.frequency_penalty)
    told = sampling.bias or any(penalties) or sampling.repetition_penalty != 1.0
    return bool(told) and (row.position == 0 or row.fork_from is not None)


def _opening(row: Row, sequence: Sequence) -> Opening:
    return Opening(row.sequence, sequence.prompt_length, sequence.sampling.bias)
