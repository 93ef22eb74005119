"""Which cache blocks hold which tokens of which sequence, on one stage.

A step goes in; out comes the table as it will be once the step has run, and the copies of blocks
and moves of slots to do before it. The table itself never changes: a refused step leaves nothing to
undo, and a stage keeps the new table only after its computation. Called by engines; block ids
never leave a stage.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from meshinfer.core.step import Row
from meshinfer.errors import CacheLost, StageFailed


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Copy all of `source` over `target`, in every layer, before the step computes."""

    source: int
    target: int


class SlotMove(NamedTuple):
    """Write the keys and values of one token over those of another, in every layer, after the
    copies. What one move of a placement writes, no later one reads."""

    source_block: int
    source_slot: int  # place in the block
    target_block: int
    target_slot: int


@dataclass(frozen=True, slots=True)
class Chain:
    """The cache of one sequence: `blocks` in token order; the last may be partly filled."""

    length: int  # tokens, or slots while a token tree lies at its end
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one step's tokens go."""

    table: BlockTable  # to keep when the step has run
    chains: tuple[Chain, ...]  # of each row, its new tokens included
    copies: tuple[BlockCopy, ...]  # in this order
    moves: tuple[SlotMove, ...]  # after the copies


@dataclass(frozen=True, slots=True)
class _Changes:
    """What is collected over the rows of one step."""

    copies: list[BlockCopy] = field(default_factory=list)
    moves: list[SlotMove] = field(default_factory=list)
    read: set[int] = field(default_factory=set)
    """Blocks that moves read: freed or not, no copy may go there, as copies come first."""


class BlockTable:
    """An immutable map of sequences to blocks. `uses` counts the chains that hold each block."""

    __slots__ = ("_chains", "_free", "_uses", "block_size")

    def __init__(self, block_count: int, block_size: int) -> None:
        self.block_size = block_size
        self._chains: dict[int, Chain] = {}
        self._uses = [0] * block_count
        # Taken from the end: low ids first, and the block that was freed last is still in the CPU's
        # caches.
        self._free = list(range(block_count - 1, -1, -1))

    @property
    def block_count(self) -> int:
        return len(self._uses)

    @property
    def free_blocks(self) -> int:
        return len(self._free)

    @property
    def sequences(self) -> tuple[int, ...]:
        return tuple(self._chains)

    def chain(self, sequence: int) -> Chain:
        """The cache of `sequence`; an empty one when it is unknown."""
        return self._chains.get(sequence, _EMPTY)

    def uses(self, block: int) -> int:
        """How many sequences share `block`; 0 when it is free."""
        return self._uses[block]

    def released(self, sequences: Iterable[int]) -> BlockTable:
        """Without `sequences`; unknown ones are ignored, for an end may be told twice."""
        gone = self._chains.keys() & set(sequences)
        if not gone:
            return self
        table = self._copy()
        for sequence in gone:
            table._drop(table._chains.pop(sequence).blocks)
        return table

    def rewound(self, sequence: int, length: int) -> BlockTable:
        """With at most `length` cached tokens of `sequence`."""
        if self.chain(sequence).length <= length:
            return self
        table = self._copy()
        table._cut(sequence, length)
        return table

    def kept(self, lengths: Mapping[int, int]) -> BlockTable:
        """With the sequences of `lengths` only, each with at most so many tokens."""
        table = self.released(set(self._chains) - lengths.keys())
        for sequence, length in lengths.items():
            if sequence in table._chains:
                table = table.rewound(sequence, length)
        return table

    def placed(self, rows: Sequence[Row]) -> Placement:
        """Room for the new tokens of all rows. Raises StageFailed, with this table as it was;
        CacheLost names all sequences that hold fewer tokens than the rows build on."""
        self._check_distinct(rows)
        self._check_held(rows)
        table = self._copy()
        changes = _Changes()
        for row in rows:
            if row.fork_from is not None:
                table._fork(row, self._forkable(row.fork_from, rows))
            if row.kept:
                table._gather(row, changes)
            table._place(row, changes)
        chains = tuple(table._chains[row.sequence] for row in rows)
        return Placement(table, chains, tuple(changes.copies), tuple(changes.moves))

    def _copy(self) -> BlockTable:
        table = BlockTable.__new__(BlockTable)
        table.block_size = self.block_size
        table._chains = self._chains.copy()
        table._uses = self._uses.copy()
        table._free = self._free.copy()
        return table

    @staticmethod
    def _check_distinct(rows: Sequence[Row]) -> None:
        # Two rows of one sequence would read what the other writes in the same computation.
        if len({row.sequence for row in rows}) != len(rows):
            raise StageFailed("A sequence has two rows in one step.", "This is a bug: report it.")

    def _check_held(self, rows: Sequence[Row]) -> None:
        lost = [row.sequence for row in rows if row.fork_from is None and self._lacks(row)]
        lost += [
            row.fork_from
            for row in rows
            if row.fork_from is not None and row.position > self.chain(row.fork_from).length
        ]
        if lost:
            names = ", ".join(map(str, sorted(set(lost))))
            raise CacheLost(
                f"The cache does not hold what the step builds on, of the sequences {names}.",
                "Compute them again from their first token.",
                tuple(sorted(set(lost))),
            )

    def _lacks(self, row: Row) -> bool:
        end = max(row.position, row.kept[-1] + 1 if row.kept else 0)
        return end > self.chain(row.sequence).length

    def _forkable(self, source: int, rows: Sequence[Row]) -> int:
        """Tokens of `source` that were cached before this step and that it does not overwrite."""
        length = self.chain(source).length
        starts = (row.position - len(row.kept) for row in rows if row.sequence == source)
        return min([length, *starts])

    def _fork(self, row: Row, shareable: int) -> None:
        assert row.fork_from is not None
        if row.sequence in self._chains:
            raise StageFailed(
                f"Sequence {row.sequence} cannot fork from {row.fork_from}: it has a cache.",
                "Release it first.",
            )
        if row.position > shareable:
            raise StageFailed(
                f"Sequence {row.sequence} forks {row.position} tokens of sequence "
                f"{row.fork_from}, which holds {shareable}.",
                "Compute the prompt again from its first token.",
            )
        blocks = self._chains[row.fork_from].blocks if row.position else ()
        shared = blocks[: self._blocks_for(row.position)]
        for block in shared:
            self._uses[block] += 1
        self._chains[row.sequence] = Chain(row.position, shared)

    def _gather(self, row: Row, changes: _Changes) -> None:
        """What is kept moves right before the row's position, in blocks of its own."""
        assert row.fork_from is None
        size, chain = self.block_size, self._chains[row.sequence]
        blocks = list(chain.blocks)
        moved = [
            (source, target)
            for target, source in enumerate(row.kept, row.position - len(row.kept))
            if source != target
        ]
        for index in sorted({target // size for _, target in moved}):
            if self._uses[blocks[index]] > 1:
                blocks[index] = self._own(blocks[index], changes)
        self._chains[row.sequence] = Chain(chain.length, tuple(blocks))
        for source, target in moved:
            from_block, to_block = blocks[source // size], blocks[target // size]
            changes.moves.append(SlotMove(from_block, source % size, to_block, target % size))
            changes.read.add(from_block)

    def _place(self, row: Row, changes: _Changes) -> None:
        self._cut(row.sequence, row.position)
        blocks = list(self.chain(row.sequence).blocks)
        if row.count and row.position % self.block_size and self._uses[blocks[-1]] > 1:
            blocks[-1] = self._own(blocks[-1], changes)
        length = row.position + row.count
        while len(blocks) < self._blocks_for(length):
            blocks.append(self._take())
        self._chains[row.sequence] = Chain(length, tuple(blocks))

    def _own(self, shared: int, changes: _Changes) -> int:
        """A private copy of a block, so that nobody else sees what is written."""
        mine = self._take(changes.read)
        changes.copies.append(BlockCopy(shared, mine))
        self._uses[shared] -= 1
        return mine

    def _cut(self, sequence: int, length: int) -> None:
        chain = self.chain(sequence)
        keep = self._blocks_for(length)
        self._drop(chain.blocks[keep:])
        self._chains[sequence] = Chain(length, chain.blocks[:keep])

    def _take(self, avoided: Set[int] = frozenset()) -> int:
        places = range(len(self._free) - 1, -1, -1)
        place = next((one for one in places if self._free[one] not in avoided), None)
        if place is None:
            raise StageFailed(
                f"The cache is full: all {self.block_count * self.block_size} tokens are in use.",
                "Let other requests finish, or give the stage more memory.",
            )
        block = self._free.pop(place)
        self._uses[block] = 1
        return block

    def _drop(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self._uses[block] -= 1
            if not self._uses[block]:
                self._free.append(block)

    def _blocks_for(self, length: int) -> int:
        return -(-length // self.block_size)


_EMPTY = Chain(0, ())
