"""Token ids decide; the least recently used leave."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from meshinfer.serve.prefix_cache import PrefixCache, common_length

TOKENS = st.lists(st.integers(0, 2), max_size=60)


@given(one=TOKENS, other=TOKENS)
def test_what_two_have_in_common(one: list[int], other: list[int]) -> None:
    expected = 0
    while expected < min(len(one), len(other)) and one[expected] == other[expected]:
        expected += 1
    assert common_length(one, other) == expected


def test_the_longest_match_wins() -> None:
    cache = PrefixCache()
    assert cache.longest([1, 2]) == (0, 0)
    cache.keep(5, [1, 2, 9])
    cache.keep(6, [1, 2, 3, 9])
    assert cache.longest([1, 2, 3, 4]) == (6, 3)
    assert cache.longest([7]) == (0, 0)


def test_one_that_another_contains_leaves() -> None:
    cache = PrefixCache()
    cache.keep(5, [1, 2])
    cache.keep(6, [1, 3])
    assert cache.keep(7, [1, 2, 4]) == [5]
    assert set(cache.keys) == {6, 7}


def test_the_least_recently_used_leave_first() -> None:
    cache = PrefixCache(most_kept=3)
    for key in (1, 2, 3):
        assert cache.keep(key, [key]) == []
    cache.touch(1)
    assert cache.keep(4, [4]) == [2]
    assert cache.evict(spare=(3,)) == 1
    assert cache.forget(4)
    assert not cache.forget(4)
    assert cache.evict(spare=(3, None)) is None
