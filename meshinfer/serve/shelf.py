"""The cache of a pipeline as the leader manages it: what runs, what is kept, what is free. Pure.

Joins the books of blocks with the prefixes that later prompts may begin with; kept by the roster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from meshinfer.serve.cache_book import CacheBook
from meshinfer.serve.prefix_cache import PrefixCache


class Shelf:
    """Rows are noted as they are made; `released` collects what stages must be told to forget."""

    def __init__(self, block_count: int, block_size: int) -> None:
        self.book = CacheBook(block_count, block_size)
        self.prefixes = PrefixCache()
        self._sources: set[int] = set()  # what rows of the step that is being made fork from
        self._released: list[int] = []

    @property
    def has_released(self) -> bool:
        """Whether stages have something to forget."""
        return bool(self._released)

    def begin_step(self) -> None:
        self._sources = set()

    def take_released(self) -> tuple[int, ...]:
        """Sequences to forget before the step that is made now."""
        released, self._released = tuple(self._released), []
        return released

    def note(
        self, key: int, position: int, count: int, fork: int | None = None, kept: int = 0
    ) -> None:
        """A row is on its way."""
        if fork is not None:
            # A release travels with the step and comes first: what is forked from must stay.
            self._sources.add(fork)
            self.prefixes.touch(fork)
        self.book.note(key, position, count, fork, kept)

    def keep(self, key: int, tokens: list[int]) -> None:
        """A sequence ended: its cache stays as a prefix until its room is needed."""
        self.release(self.prefixes.keep(key, tokens))

    def release(self, keys: Iterable[int]) -> None:
        for key in keys:
            self.book.release(key)
            self._released.append(key)

    def cut(self, lengths: Mapping[int, int]) -> None:
        """Stages are told to hold no more than this."""
        for key, length in lengths.items():
            self.book.cut(key, length)

    def lost(self, keys: Iterable[int]) -> None:
        """A stage does not hold these any more: no prompt may begin with them."""
        self.release([key for key in keys if self.prefixes.forget(key)])

    def inherit(self, key: int, tokens: list[int]) -> None:
        """All stages hold a sequence of an older plan. One that has no room here is dropped."""
        if tokens and self.book.free >= self.book.blocks_for(len(tokens)):
            self.book.note(key, 0, len(tokens))
            self.keep(key, tokens)

    def available(self, spare: int | None = None) -> int:
        """Blocks that are free or only hold prefixes other than `spare`."""
        kept = [key for key in self.prefixes.keys if key not in self._sources | {spare}]
        return self.book.free + (self.book.only_in(kept) if kept else 0)

    def make_room(self, blocks: int, spare: int | None = None) -> bool:
        """Have so many blocks free, at the cost of kept prefixes only."""
        while self.book.free < blocks:
            key = self.prefixes.evict(self._sources | {spare})
            if key is None:
                return False
            self.release([key])
        return True

    def is_source(self, key: int) -> bool:
        return key in self._sources
