from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from meshinfer.core.ids import Digest
from meshinfer.weights.room import (
    Entry,
    EntryKind,
    Shortage,
    StoreLimits,
    shortage,
    to_remove,
)


def entry(name: str, size: int, last_use: float, on_disk: int | None = None) -> Entry:
    kept = size if on_disk is None else on_disk
    return Entry(EntryKind.STAGE, Digest(name), Path(name), size, kept, last_use)


ENTRIES = st.lists(
    st.builds(
        lambda number, size, on_disk, last: entry(str(number), size, last, min(size, on_disk)),
        st.integers(0, 10**6),
        st.integers(0, 100),
        st.integers(0, 100),
        st.integers(0, 5),
    ),
    max_size=12,
    unique_by=lambda one: one.folder,
)
LACK = st.builds(Shortage, st.integers(-50, 300), st.integers(-50, 300))


def test_without_a_quota_only_the_disk_counts() -> None:
    there = [entry("a", 100, 1.0)]
    assert shortage(StoreLimits(None, 10), there, 50, 50, 60).none
    assert shortage(StoreLimits(None, 10), there, 50, 50, 59) == Shortage(0, 1)


def test_the_quota_counts_all_that_is_kept_and_what_comes() -> None:
    there = [entry("a", 100, 1.0), entry("b", 30, 1.0)]
    assert shortage(StoreLimits(180, 0), there, 50, 50, 1000).none
    assert shortage(StoreLimits(170, 0), there, 50, 50, 1000).quota == 10


def test_what_is_on_the_disk_already_needs_no_room_there() -> None:
    assert shortage(StoreLimits(None, 10), [], 50, 0, 0).none


def test_the_longest_unused_goes_first() -> None:
    entries = [entry("new", 50, 9.0), entry("old", 50, 1.0), entry("middle", 50, 5.0)]
    assert to_remove(entries, Shortage(60, 0)) == (entries[1], entries[2])
    assert to_remove(entries, Shortage(-5, 0)) == ()


def test_nothing_goes_when_all_would_not_be_enough() -> None:
    assert to_remove([entry("a", 50, 1.0)], Shortage(51, 0)) is None
    assert to_remove([entry("a", 50, 1.0, on_disk=0)], Shortage(0, 1)) is None


def test_what_frees_nothing_that_is_lacking_stays() -> None:
    hole = entry("hole", 50, 1.0, on_disk=0)
    full = entry("full", 50, 2.0)
    assert to_remove([hole, full], Shortage(0, 10)) == (full,)


@given(ENTRIES, LACK)
def test_what_goes_ends_the_shortage_and_the_last_of_it_is_needed(
    entries: list[Entry], lack: Shortage
) -> None:
    chosen = to_remove(entries, lack)
    sizes = sum(one.size for one in entries), sum(one.on_disk for one in entries)
    possible = sizes[0] >= lack.quota and sizes[1] >= lack.disk
    assert (chosen is not None) is possible
    for number, one in enumerate(chosen or ()):
        assert not lack.none, f"{number} go although it is enough"
        lack = lack.without(one)
    assert chosen is None or lack.none
    assert list(chosen or ()) == sorted(chosen or (), key=lambda one: (one.last_use, one.folder))
