"""What the stages' caches hold, as the leader knows it. Pure; kept by the scheduler.

A mirror of `engine.blocks.BlockTable`, in blocks of the largest size that any engine of the plan
uses: smaller blocks that divide it never need more memory. Rows are noted in the order in which
they are sent, which is the order in which every stage computes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(slots=True)
class _Chain:
    length: int  # tokens
    blocks: list[int]


class CacheBook:
    """Blocks with the number of sequences that share each."""

    def __init__(self, block_count: int, block_size: int) -> None:
        self.block_count = block_count
        self.block_size = block_size
        self._chains: dict[int, _Chain] = {}
        self._uses: dict[int, int] = {}
        self._next_block = 0

    @property
    def free(self) -> int:
        """Blocks that no sequence holds."""
        return self.block_count - len(self._uses)

    def length(self, key: int) -> int:
        """Tokens held for `key`; 0 when it is unknown."""
        chain = self._chains.get(key)
        return chain.length if chain else 0

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def needed(
        self, key: int, position: int, count: int, fork_from: int | None = None, kept: int = 0
    ) -> int:
        """Blocks that a row takes beyond those which its sequence, or its source, has. It writes
        from `kept` tokens before `position` on."""
        chain = self._chains.get(key if fork_from is None else fork_from)
        # A sequence may hold more than `position` tokens: guesses that were wrong.
        held = len(chain.blocks) if chain and fork_from is None else self.blocks_for(position)
        more = max(0, self.blocks_for(position + count) - held)
        for place in self._partly_written(position, kept):
            assert chain is not None  # a row never begins inside of nothing
            shared = self._uses[chain.blocks[place]] > 1
            more += shared or fork_from is not None
        return more

    def note(
        self, key: int, position: int, count: int, fork_from: int | None = None, kept: int = 0
    ) -> None:
        """A row is on its way: the same as `engine.blocks` does with it."""
        if fork_from is not None:
            source = self._chains[fork_from].blocks if position else []
            shared = source[: self.blocks_for(position)]
            for block in shared:
                self._uses[block] += 1
            self._chains[key] = _Chain(position, list(shared))
        chain = self._chains.setdefault(key, _Chain(0, []))
        self._cut(chain, position)
        for place in self._partly_written(position, kept):
            if self._uses[chain.blocks[place]] > 1:
                self._drop(chain.blocks[place : place + 1])
                chain.blocks[place] = self._take()
        chain.length = position + count
        while len(chain.blocks) < self.blocks_for(chain.length):
            chain.blocks.append(self._take())

    def cut(self, key: int, length: int) -> None:
        """At most `length` tokens of `key` count from now on."""
        chain = self._chains.get(key)
        if chain is not None and chain.length > length:
            self._cut(chain, length)

    def release(self, key: int) -> None:
        """Forget a sequence; an unknown one is ignored."""
        chain = self._chains.pop(key, None)
        if chain is not None:
            self._drop(chain.blocks)

    def only_in(self, keys: Iterable[int]) -> int:
        """Blocks that would be free without `keys`."""
        held: dict[int, int] = {}
        for key in keys:
            chain = self._chains.get(key)
            for block in chain.blocks if chain else ():
                held[block] = held.get(block, 0) + 1
        return sum(self._uses[block] == count for block, count in held.items())

    def _partly_written(self, position: int, kept: int) -> range:
        """Blocks that hold tokens before `position` and are written nevertheless."""
        return range((position - kept) // self.block_size, self.blocks_for(position))

    def _cut(self, chain: _Chain, length: int) -> None:
        keep = self.blocks_for(length)
        self._drop(chain.blocks[keep:])
        del chain.blocks[keep:]
        chain.length = length

    def _take(self) -> int:
        self._next_block += 1
        self._uses[self._next_block] = 1
        return self._next_block

    def _drop(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self._uses[block] -= 1
            if not self._uses[block]:
                del self._uses[block]
