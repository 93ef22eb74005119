"""The leader's books agree with what a stage's block table does."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from meshinfer.core.step import Row
from meshinfer.engine.blocks import BlockTable
from meshinfer.serve.cache_book import CacheBook

SIZE = 8

ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["grow", "fork", "rewind", "release"]),
        st.integers(1, 6),
        st.integers(1, 6),
        st.integers(1, 30),
        st.integers(0, 30),
    ),
    max_size=30,
)


@settings(max_examples=300, deadline=None)
@given(actions=ACTIONS, blocks=st.integers(20, 60))
def test_free_blocks_are_those_of_the_stage(
    actions: list[tuple[str, int, int, int, int]], blocks: int
) -> None:
    table, book = BlockTable(blocks, SIZE), CacheBook(blocks, SIZE)
    finer = BlockTable(4 * blocks, SIZE // 4)
    for action, key, other, count, position in actions:
        length, fork = book.length(key), None
        if action == "release":
            table, finer = table.released((key,)), finer.released((key,))
            book.release(key)
        else:
            start = length
            if action == "rewind":
                start = min(position, length)
            elif action == "fork":
                if length or other == key or not book.length(other):
                    continue
                start, fork = min(position, book.length(other)), other
            needed = book.needed(key, start, count, fork)
            if needed > book.free:
                continue
            row = Row(key, start, count, 0, fork_from=fork)
            table = table.placed([row]).table
            finer = finer.placed([row]).table  # a device with smaller blocks has room as well
            book.note(key, start, count, fork)
        assert book.free == table.free_blocks
        assert book.length(key) == table.chain(key).length


def test_what_would_be_free_without_some() -> None:
    book = CacheBook(20, SIZE)
    book.note(1, 0, 20)
    book.note(2, 16, 4, 1)
    book.note(3, 0, 8)
    assert book.block_count - book.free == 3 + 1 + 1
    assert book.only_in([1]) == 1
    assert book.only_in([1, 2]) == 4
    assert book.only_in([3, 9]) == 1
    assert book.only_in([1, 2, 3]) == 5
