"""Who waits, who runs, and what of the cache each has. Pure; kept by the scheduler."""

from __future__ import annotations

from collections.abc import Iterable

from meshinfer.serve.prefix_cache import common_length
from meshinfer.serve.sequence import Sequence, SequenceState
from meshinfer.serve.shelf import Shelf
from meshinfer.serve.waiting_queue import WaitingQueue

WORTH_SHARING = 8
"""Tokens; below it a fork costs more than computing them."""

WORTH_WAITING = 64
"""Tokens that a prompt waits for when another with the same beginning is computed just now."""


class Roster:
    """Moves sequences between waiting, running and finished."""

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf
        self.waiting = WaitingQueue()
        self.running: list[Sequence] = []  # in the order of their starts
        self._last_key = 0

    @property
    def lengths(self) -> dict[int, int]:
        """Tokens of everything that stages should hold once all steps are done."""
        living = {one.key: one.held for one in self.running if one.held}
        return living | {key: len(tokens) for key, tokens in self.shelf.prefixes.items()}

    def inherit(self, held: Iterable[tuple[int, list[int]]]) -> None:
        """Sequences that all stages hold from an older plan."""
        for key, tokens in held:
            self._last_key = max(self._last_key, key)
            self.shelf.inherit(key, tokens)

    def end(self, sequence: Sequence) -> None:
        """Never computed again. The cache of an answer is kept, that of any other goes."""
        if sequence.state is SequenceState.WAITING:
            self.waiting.remove(sequence)
        elif sequence.state is SequenceState.RUNNING:
            self.running.remove(sequence)
            if not sequence.held:
                pass  # no stage has heard of it
            elif sequence.finish is None or not sequence.confirmed:
                self.shelf.release([sequence.key])
            else:
                self.shelf.keep(sequence.key, sequence.tokens[: sequence.confirmed])
        sequence.state = SequenceState.FINISHED

    def start_next(self) -> tuple[Sequence, int | None] | None:
        """Start the next waiting sequence that may: it, and whose cache it begins with. None when
        there is none, or no room: nobody smaller goes first, or the large ones would starve."""
        for sequence in self.waiting.in_turn():
            source, length = self._source_for(sequence)
            if length < 0:
                continue
            fork = source if length else None
            if fork is not None and not self._fits(sequence, length, fork):
                length, fork = 0, None  # the source itself may have to go for it
            if fork is None and not self._fits(sequence, 0, None):
                return None
            self._start(sequence, length)
            return sequence, fork
        return None

    def room_for(self, sequence: Sequence, count: int) -> bool:
        """Make room for `count` more tokens, if need be at the cost of later sequences."""
        while True:
            kept = len(sequence.kept)
            needed = self.shelf.book.needed(sequence.key, sequence.scheduled, count, kept=kept)
            if self.shelf.make_room(needed):
                return True
            if not self._rob(sequence):
                return False

    def spare_tokens(self, sequence: Sequence, count: int) -> int:
        """Of `count` more tokens, those that fit without anybody giving way for them."""
        book = self.shelf.book
        kept = len(sequence.kept)
        while count and book.needed(sequence.key, sequence.scheduled, count, kept=kept) > book.free:
            count -= 1
        return count

    def give_up(self, sequence: Sequence) -> None:
        """Its cache goes; it will be computed again from its tokens, under another name."""
        self.running.remove(sequence)
        self.shelf.release([sequence.key])
        sequence.key = 0
        sequence.kept = ()
        sequence.forget_guess(0)
        sequence.state = SequenceState.WAITING
        self.waiting.add(sequence, returned=True)

    def rewind(self, sequence: Sequence, length: int) -> None:
        """What is behind `length` tokens will be computed once more."""
        sequence.forget_guess(length)
        sequence.kept = ()

    def _start(self, sequence: Sequence, length: int) -> None:
        """It runs from now on, under a name that no frame has carried yet."""
        self.waiting.take(sequence)
        self._last_key += 1
        sequence.key = self._last_key
        sequence.state = SequenceState.RUNNING
        sequence.scheduled = length
        if not sequence.drawn:
            sequence.cached = length
        self.running.append(sequence)

    def _source_for(self, sequence: Sequence) -> tuple[int, int]:
        """(key, tokens) of the cached sequence that begins most alike; -1 tokens: it pays to wait
        for one that is being computed."""
        tokens = sequence.tokens[:-1]  # the last one is computed in any case: its logits are wanted
        key, length = self.shelf.prefixes.longest(tokens)
        coming = 0
        for other in self.running:
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
        shelf, running = self.shelf, len(self.running)
        tokens = len(sequence.tokens) + 1 - length
        needed = shelf.book.needed(sequence.key, length, tokens, fork) + running
        if not running:
            needed = min(needed, shelf.book.block_count)
        return shelf.available(spare=fork) >= needed and shelf.make_room(needed, spare=fork)

    def _rob(self, keep: Sequence) -> bool:
        """Take the cache from the last idle sequence in turn that comes after `keep`."""
        turns = {id(one): (one.priority, place) for place, one in enumerate(self.running)}
        for victim in sorted(self.running, key=lambda one: turns[id(one)], reverse=True):
            if victim is keep:
                return False
            if not victim.in_flight and victim.scheduled and not self.shelf.is_source(victim.key):
                self.give_up(victim)
                return True
        return False
