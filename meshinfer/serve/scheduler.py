"""Which rows make the next step. Pure: no clock, no I/O, no knowledge of stages but their number.

A pipeline of n stages is busy when n steps are in flight, so running sequences are dealt into n
micro-batches: a step takes at most a fair share of those that are ready. Decode rows come first,
then prompt chunks up to the step's token budget, so that a long prompt delays nobody by more than
one chunk. Cache is counted in blocks as they fill; when it runs out, the youngest sequence gives
up its cache, waits at the front, and is computed again from its tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from meshinfer.core.step import Row, Sampled, Step
from meshinfer.errors import Overloaded
from meshinfer.serve.sequence import Sequence, SequenceState


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """What the plan allows."""

    cache_tokens: int  # on every stage, all sequences together
    depth: int  # steps in flight that keep every stage busy: the number of stages
    block_size: int  # largest cache block of the plan's engines, in tokens: usage is rounded up
    step_tokens: int = 256  # most new tokens in one step
    step_rows: int = 256
    waiting: int = 256  # requests that may wait


@dataclass(frozen=True, slots=True)
class Advance:
    """What a step brought to one sequence."""

    sequence: Sequence
    tokens: tuple[int, ...]


class Scheduler:
    """Owns every Sequence's state."""

    def __init__(self, limits: SchedulerLimits) -> None:
        self._limits = limits
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []  # oldest first
        self._flights: dict[int, list[tuple[Row, Sequence]]] = {}
        self._released: list[int] = []
        self._next_step = 0
        self._next_key = 0

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
        return self._blocks_used() / max(1, self._block_count())

    def new_key(self) -> int:
        """A name for a sequence that no frame has carried yet."""
        self._next_key += 1
        return self._next_key

    def admit(self, sequence: Sequence) -> None:
        """Queue a sequence. Raises Overloaded when too many wait."""
        if len(self._waiting) >= self._limits.waiting:
            raise Overloaded(
                f"{len(self._waiting)} requests wait already.", "Try again in a few seconds."
            )
        self._waiting.append(sequence)

    def end(self, sequence: Sequence) -> None:
        """Answered, cancelled or failed: never computed again, its cache goes. Idempotent."""
        if sequence.state is SequenceState.WAITING:
            self._waiting.remove(sequence)
        elif sequence.state is SequenceState.RUNNING:
            self._running.remove(sequence)
            if sequence.scheduled:  # else no stage has heard of it
                self._released.append(sequence.key)
        sequence.state = SequenceState.FINISHED

    def next_step(self) -> Step | None:
        """The next rows to compute, or None: nothing is ready or enough steps are in flight."""
        if len(self._flights) >= self._limits.depth:
            return None
        flights = self._choose()
        if not flights:
            return None
        tokens: list[int] = []
        for row, sequence in flights:
            tokens += sequence.tokens[row.position : row.position + row.count]
        rows = tuple(row for row, _ in flights)
        step = Step(self._next_step, rows, tuple(tokens), tuple(self._released))
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
        for row, sequence in self._flights.pop(step):
            sequence.in_flight -= 1
            own = drawn[taken : taken + row.logits]
            taken += row.logits
            if sequence.state is SequenceState.FINISHED or row.sequence != sequence.key:
                continue  # cancelled while the step was under way
            for one in own:
                sequence.append(one.token)
            if sequence.finish is not None:
                self.end(sequence)
            if own:
                advances.append(Advance(sequence, tuple(one.token for one in own)))
        return advances

    def fail(self, step: int) -> tuple[Sequence, ...]:
        """A stage could not compute this step: its living sequences, which the caller ends."""
        flights = self._flights.pop(step)
        for _, sequence in flights:
            sequence.in_flight -= 1
        return tuple(one for _, one in flights if one.state is not SequenceState.FINISHED)

    def _choose(self) -> list[tuple[Row, Sequence]]:
        """Rows for one step. Each counts as cached as soon as it is taken."""
        budget = self._limits.step_tokens
        rows = min(self._limits.step_rows, self._fair_share())
        chosen: list[tuple[Row, Sequence]] = []
        for sequence in self._ready():
            if budget == 0 or len(chosen) >= rows:
                break
            count = min(sequence.pending, budget)
            if not self._room_for(sequence, count):
                continue
            chosen.append((_take(sequence, count), sequence))
            budget -= count
        return chosen

    def _ready(self) -> Iterator[Sequence]:
        """Decoding sequences, prompts under way, then the waiting ones, started one by one."""
        decoding = [one for one in self._running if one.decodes and not one.in_flight]
        prefilling = [one for one in self._running if one.pending and not one.decodes]
        yield from decoding
        yield from prefilling
        while self._waiting:
            sequence = self._waiting[0]
            if not self._start(sequence):
                return
            yield sequence

    def _start(self, sequence: Sequence) -> bool:
        """Move the first waiting sequence to the running ones if all its tokens fit the cache."""
        needed = self._blocks(len(sequence.tokens) + 1)
        if self._blocks_used() + needed > self._block_count() and self._running:
            return False
        self._waiting.popleft()
        sequence.state = SequenceState.RUNNING
        self._running.append(sequence)
        return True

    def _room_for(self, sequence: Sequence, count: int) -> bool:
        """Make room for `count` more tokens, if need be at the cost of younger sequences."""
        if sequence.state is not SequenceState.RUNNING:
            return False
        while True:
            others = self._blocks_used() - self._blocks(sequence.scheduled)
            wanted = self._blocks(sequence.scheduled + count)
            if others + wanted <= self._block_count():
                return True
            if not self._give_up_youngest(sequence):
                return False

    def _give_up_youngest(self, keep: Sequence) -> bool:
        """Take the cache from the youngest idle sequence that is younger than `keep`."""
        for sequence in reversed(self._running):
            if sequence is keep:
                return False
            if sequence.in_flight == 0 and sequence.scheduled:
                self._running.remove(sequence)
                self._released.append(sequence.key)
                sequence.key = self.new_key()
                sequence.scheduled = 0
                sequence.state = SequenceState.WAITING
                self._waiting.appendleft(sequence)
                return True
        return False

    def _fair_share(self) -> int:
        """Rows a step may take so that `depth` steps find work."""
        ready = len(self._running) + len(self._waiting)
        return max(1, -(-ready // self._limits.depth))

    def _block_count(self) -> int:
        return self._limits.cache_tokens // self._limits.block_size

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._limits.block_size)

    def _blocks_used(self) -> int:
        return sum(self._blocks(max(one.scheduled, 1)) for one in self._running)


def _take(sequence: Sequence, count: int) -> Row:
    """The next `count` tokens of a sequence as a row, on their way from now on."""
    row = Row(
        sequence=sequence.key,
        position=sequence.scheduled,
        count=count,
        logits=1 if count == sequence.pending else 0,
        sampling=sequence.sampling,
    )
    sequence.scheduled += count
    sequence.in_flight += 1
    return row
