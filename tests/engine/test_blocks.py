"""Blocks are conserved, never shared wrongly, and a refused step changes nothing."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from meshinfer.core.step import Row
from meshinfer.engine.blocks import BlockCopy, BlockTable, Chain, SlotMove
from meshinfer.errors import CacheLost, StageFailed


def row(
    sequence: int,
    position: int,
    count: int,
    fork_from: int | None = None,
    kept: tuple[int, ...] = (),
) -> Row:
    return Row(sequence, position, count, 0, fork_from=fork_from, kept=kept)


def after(table: BlockTable, *rows: Row) -> BlockTable:
    return table.placed(rows).table


def test_a_sequence_grows_block_by_block() -> None:
    table = BlockTable(4, 4)
    lengths = []
    for position, count in ((0, 3), (3, 1), (4, 1), (5, 8)):
        table = after(table, row(1, position, count))
        lengths.append((table.chain(1).length, len(table.chain(1).blocks)))
    assert lengths == [(3, 1), (4, 1), (5, 2), (13, 4)]
    assert table.free_blocks == 0


def test_rewinding_frees_the_blocks_behind() -> None:
    table = after(BlockTable(4, 4), row(1, 0, 13))
    table = after(table, row(1, 5, 1))
    assert table.chain(1) == Chain(6, table.chain(1).blocks)
    assert (len(table.chain(1).blocks), table.free_blocks) == (2, 2)


def test_a_row_may_not_start_beyond_what_is_cached() -> None:
    table = after(BlockTable(4, 4), row(1, 0, 3))
    with pytest.raises(StageFailed, match="of the sequences 1"):
        table.placed([row(1, 4, 1)])
    with pytest.raises(StageFailed, match="of the sequences"):
        table.placed([row(2, 1, 1)])


def test_a_full_cache_refuses_the_whole_step() -> None:
    table = after(BlockTable(4, 4), row(1, 0, 8))
    with pytest.raises(StageFailed, match="all 16 tokens"):
        table.placed([row(2, 0, 8), row(1, 2, 1), row(3, 0, 9)])
    assert (table.chain(1).length, table.chain(2).length, table.free_blocks) == (8, 0, 2)


def test_two_rows_of_one_sequence_are_refused() -> None:
    with pytest.raises(StageFailed, match="two rows"):
        BlockTable(4, 4).placed([row(1, 0, 1), row(1, 1, 1)])


def test_a_fork_shares_full_blocks_and_copies_the_partly_filled_one() -> None:
    table = after(BlockTable(8, 4), row(1, 0, 10))
    placement = table.placed([row(2, 10, 1, fork_from=1)])
    old, new = table.chain(1).blocks, placement.table.chain(2).blocks
    assert new[:2] == old[:2]
    assert placement.copies == (BlockCopy(old[2], new[2]),)
    assert [placement.table.uses(block) for block in (*old, new[2])] == [2, 2, 1, 1]


def test_a_fork_at_a_block_border_copies_nothing() -> None:
    table = after(BlockTable(8, 4), row(1, 0, 10))
    placement = table.placed([row(2, 8, 3, fork_from=1)])
    assert placement.copies == ()
    assert placement.table.chain(2).blocks[:2] == table.chain(1).blocks[:2]


def test_writing_into_a_shared_block_copies_it_first() -> None:
    table = after(BlockTable(8, 4), row(1, 0, 8))
    table = after(table, row(2, 8, 1, fork_from=1))
    placement = table.placed([row(1, 5, 1)])
    shared = table.chain(2).blocks[1]
    assert placement.copies == (BlockCopy(shared, placement.table.chain(1).blocks[1]),)
    assert placement.table.chain(2).blocks[1] == shared


def test_source_and_fork_may_write_in_one_step_in_either_order() -> None:
    table = after(BlockTable(8, 4), row(1, 0, 6))
    for rows in (
        [row(1, 6, 1), row(2, 6, 1, fork_from=1)],
        [row(2, 6, 1, fork_from=1), row(1, 6, 1)],
    ):
        placement = table.placed(rows)
        ends = {placement.table.chain(key).blocks[-1] for key in (1, 2)}
        assert len(ends) == 2
        assert len(placement.copies) == 1
        assert placement.copies[0].source == table.chain(1).blocks[1]


def test_a_fork_takes_only_what_its_source_keeps() -> None:
    table = after(BlockTable(8, 4), row(1, 0, 6))
    with pytest.raises(StageFailed, match="which holds 4"):
        table.placed([row(1, 4, 1), row(2, 6, 1, fork_from=1)])
    with pytest.raises(StageFailed, match="of the sequences 1"):
        table.placed([row(1, 6, 1), row(2, 7, 1, fork_from=1)])
    with pytest.raises(StageFailed, match="of the sequences 9"):
        table.placed([row(2, 1, 1, fork_from=9)])


def test_a_sequence_with_a_cache_cannot_fork() -> None:
    table = after(BlockTable(8, 4), row(1, 0, 6), row(2, 0, 2))
    with pytest.raises(StageFailed, match="it has a cache"):
        table.placed([row(2, 2, 1, fork_from=1)])


def test_a_shared_block_outlives_its_first_owner() -> None:
    table = after(BlockTable(8, 4), row(1, 0, 8))
    table = after(table, row(2, 8, 1, fork_from=1))
    kept = table.chain(2).blocks
    table = table.released([1, 1, 77])
    assert table.sequences == (2,)
    assert table.chain(2).blocks == kept
    assert table.free_blocks == 8 - 3
    assert table.released([2]).free_blocks == 8


def test_rewound_only_shortens() -> None:
    table = after(BlockTable(8, 4), row(1, 0, 8))
    assert table.rewound(1, 3).chain(1).length == 3
    assert table.rewound(1, 3).free_blocks == 7
    assert table.rewound(1, 9) is table
    assert table.rewound(2, 0) is table


def test_kept_slots_move_out_of_blocks_that_the_row_gives_back() -> None:
    table = after(BlockTable(4, 4), row(1, 0, 12))
    first, second, third = table.chain(1).blocks
    placement = table.placed([row(1, 5, 1, kept=(3, 6, 9))])
    assert placement.moves == (
        SlotMove(first, 3, first, 2),
        SlotMove(second, 2, first, 3),
        SlotMove(third, 1, second, 0),  # over the border of a block
    )
    assert placement.copies == ()
    assert placement.table.chain(1) == Chain(6, (first, second))
    assert placement.table.uses(third) == 0


def test_a_slot_that_is_in_its_place_does_not_move() -> None:
    table = after(BlockTable(4, 4), row(1, 0, 8))
    assert table.placed([row(1, 7, 1, kept=(5, 6))]).moves == ()


def test_every_shared_block_that_a_move_writes_to_is_copied_before() -> None:
    table = after(BlockTable(8, 4), row(1, 0, 12))
    table = after(table, row(2, 12, 1, fork_from=1))
    shared = table.chain(1).blocks
    placement = table.placed([row(1, 5, 1, kept=(5, 6))])
    first, second = placement.table.chain(1).blocks
    assert placement.copies == (BlockCopy(shared[0], first), BlockCopy(shared[1], second))
    assert placement.moves == (SlotMove(second, 1, first, 3), SlotMove(second, 2, second, 0))
    assert placement.table.chain(2).blocks[:3] == shared


def test_no_copy_goes_to_a_block_that_a_move_reads() -> None:
    table = after(BlockTable(8, 4), row(1, 0, 12), row(3, 0, 2))
    given_back = table.chain(1).blocks[2]
    placement = table.placed([row(1, 5, 1, kept=(9,)), row(2, 2, 1, fork_from=3)])
    assert placement.moves[0].source_block == given_back
    assert [copy.source for copy in placement.copies] == [table.chain(3).blocks[0]]
    assert placement.copies[0].target != given_back


def test_a_fork_takes_nothing_that_its_source_moves_over() -> None:
    table = after(BlockTable(8, 4), row(1, 0, 12))
    with pytest.raises(StageFailed, match="which holds 4"):
        table.placed([row(1, 5, 1, kept=(9,)), row(2, 5, 1, fork_from=1)])


def test_slots_beyond_what_is_cached_are_lost() -> None:
    table = after(BlockTable(4, 4), row(1, 0, 6))
    with pytest.raises(CacheLost) as caught:
        table.placed([row(1, 5, 1, kept=(4, 6))])
    assert caught.value.sequences == (1,)


BLOCKS = 9


class Tables(RuleBasedStateMachine):
    """Against a cache of cells that hold what was written there, as a device's would."""

    def __init__(self) -> None:
        super().__init__()
        self.table = BlockTable(BLOCKS, 4)
        self.cells: dict[tuple[int, int], Any] = {}
        self.texts: dict[int, list[int]] = {}
        self.written = 0

    def apply(self, rows: list[Row]) -> None:
        before = dict(self.table._chains), list(self.table._uses), sorted(self.table._free)
        try:
            placement = self.table.placed(rows)
        except StageFailed:
            now = dict(self.table._chains), list(self.table._uses), sorted(self.table._free)
            assert now == before
            return
        for copy in placement.copies:
            for cell in range(4):
                self.cells[copy.target, cell] = self.cells.get((copy.source, cell))
        self.move(placement.moves)
        texts = {key: list(text) for key, text in self.texts.items()}
        for one in rows:
            source = texts if one.fork_from is None else self.texts
            start = source.get(one.sequence if one.fork_from is None else one.fork_from, [])
            if one.kept:
                start = list(start)
                target = one.position - len(one.kept)
                start[target : one.position] = [start[slot] for slot in one.kept]
            fresh = list(range(self.written, self.written + one.count))
            self.written += one.count
            texts[one.sequence] = start[: one.position] + fresh
            chain = placement.table.chain(one.sequence)
            for place, value in enumerate(fresh, one.position):
                self.cells[chain.blocks[place // 4], place % 4] = value
        self.texts = texts
        self.table = placement.table

    def move(self, moves: tuple[SlotMove, ...]) -> None:
        """All read before one is written, as on the CPU, and in order, as in the toy: the same."""
        at_once = dict(self.cells)
        for block, slot, *target in moves:
            at_once[target[0], target[1]] = self.cells[block, slot]
        for block, slot, *target in moves:
            self.cells[target[0], target[1]] = self.cells[block, slot]
        assert self.cells == at_once

    @rule(
        steps=st.lists(
            st.tuples(
                st.integers(0, 3),
                st.integers(0, 9),
                st.integers(1, 6),
                st.one_of(st.none(), st.integers(0, 3)),
                st.booleans(),
            ),
            min_size=1,
            max_size=3,
        )
    )
    def step(self, steps: list[tuple[int, int, int, int | None, bool]]) -> None:
        rows = []
        for sequence, position, count, fork, follow in steps:
            length = len(self.texts.get(sequence if fork is None else fork, []))
            at = length if follow else min(position, length + 1)
            rows.append(row(sequence, at, count, fork))
        self.apply(rows)

    @rule(sequence=st.integers(0, 3), count=st.integers(1, 9))
    def grow(self, sequence: int, count: int) -> None:
        self.apply([row(sequence, len(self.texts.get(sequence, [])), count)])

    @precondition(lambda self: any(self.texts.values()))
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        source = data.draw(st.sampled_from(self.present()))
        position = data.draw(st.integers(1, len(self.texts[source])))
        self.apply([row(data.draw(st.integers(0, 3)), position, 1, source)])

    @precondition(lambda self: any(self.texts.values()))
    @rule(data=st.data())
    def compact(self, data: st.DataObject) -> None:
        """One sequence or several keep what they choose; a fork may come beside them."""
        rows = []
        for sequence in data.draw(st.sets(st.sampled_from(self.present()), min_size=1)):
            slots = st.integers(0, len(self.texts[sequence]) - 1)
            kept = tuple(sorted(data.draw(st.sets(slots, min_size=1, max_size=4))))
            target = data.draw(st.integers(0, kept[0]))
            count = data.draw(st.integers(1, 3))
            rows.append(row(sequence, target + len(kept), count, kept=kept))
        if data.draw(st.booleans()):
            source = data.draw(st.sampled_from(self.present()))
            position = data.draw(st.integers(1, len(self.texts[source])))
            rows.append(row(data.draw(st.integers(4, 5)), position, 1, source))
        self.apply(data.draw(st.permutations(rows)))

    def present(self) -> list[int]:
        return sorted(key for key, text in self.texts.items() if text)

    @rule(sequence=st.integers(0, 5))
    def release(self, sequence: int) -> None:
        self.table = self.table.released([sequence])
        self.texts.pop(sequence, None)

    @rule(sequence=st.integers(0, 3), length=st.integers(0, 8))
    def rewind(self, sequence: int, length: int) -> None:
        self.table = self.table.rewound(sequence, length)
        if sequence in self.texts:
            self.texts[sequence] = self.texts[sequence][:length]

    @invariant()
    def blocks_are_conserved(self) -> None:
        held = Counter(
            block for key in self.table.sequences for block in self.table.chain(key).blocks
        )
        assert [self.table.uses(block) for block in range(BLOCKS)] == [
            held[block] for block in range(BLOCKS)
        ]
        assert self.table.free_blocks + len(held) == BLOCKS
        assert not set(self.table._free) & set(held)

    @invariant()
    def every_sequence_reads_what_it_wrote(self) -> None:
        for key, text in self.texts.items():
            chain = self.table.chain(key)
            read = [
                self.cells[chain.blocks[place // 4], place % 4] for place in range(chain.length)
            ]
            assert read == text


TestTables = Tables.TestCase
TestTables.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestTables.pytestmark = [pytest.mark.slow]  # type: ignore[attr-defined]
