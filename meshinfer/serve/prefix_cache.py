"""Finished sequences whose cache is kept: what a new prompt begins with need not be computed again.

Pure; kept by the scheduler. Token ids decide, compared one by one: a hash could give one user the
cache of another (case C16). The least recently used leave when their room is needed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable
from collections.abc import Sequence as SequenceOf

MOST_KEPT = 256
"""Sequences; a lookup compares with each, which takes about 100 us."""

_PROBE = 16
"""Tokens that are compared before anything else."""


class PrefixCache:
    """Keys with their tokens, the least recently used first."""

    def __init__(self, most_kept: int = MOST_KEPT) -> None:
        self._kept: OrderedDict[int, list[int]] = OrderedDict()
        self._most_kept = most_kept

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def keys(self) -> Collection[int]:
        return self._kept.keys()

    def items(self) -> Iterable[tuple[int, list[int]]]:
        return self._kept.items()

    def keep(self, key: int, tokens: list[int]) -> list[int]:
        """Keep a sequence, as the most recently used. Returns the keys that leave for it: those
        that it contains whole, and the oldest beyond the limit."""
        length = len(tokens)
        leaving = [
            other
            for other, known in self._kept.items()
            if len(known) <= length and common_length(known, tokens) == len(known)
        ]
        for other in leaving:
            del self._kept[other]
        self._kept[key] = tokens
        while len(self._kept) > self._most_kept:
            leaving.append(self._kept.popitem(last=False)[0])
        return leaving

    def longest(self, tokens: SequenceOf[int]) -> tuple[int, int]:
        """(key, tokens in common) of the best match; (0, 0) when none begins alike."""
        best = (0, 0)
        for key, known in self._kept.items():
            length = common_length(known, tokens)
            if length > best[1]:
                best = (key, length)
        return best

    def touch(self, key: int) -> None:
        """It was used just now."""
        if key in self._kept:
            self._kept.move_to_end(key)

    def forget(self, key: int) -> bool:
        """Whether it was kept."""
        return self._kept.pop(key, None) is not None

    def evict(self, spare: Collection[int | None] = ()) -> int | None:
        """Forget the least recently used that is not in `spare`, and return its key."""
        for key in self._kept:
            if key not in spare:
                del self._kept[key]
                return key
        return None


def common_length(one: SequenceOf[int], other: SequenceOf[int]) -> int:
    """How many of the first tokens are equal."""
    most = min(len(one), len(other))
    if one[: min(_PROBE, most)] == other[: min(_PROBE, most)]:
        equal, end = min(_PROBE, most), most
    else:
        equal, end = 0, min(_PROBE, most)
    if one[equal:end] == other[equal:end]:
        return end
    while end - equal > 1:  # equal up to `equal`, not up to `end`
        middle = (equal + end) // 2
        if one[equal:middle] == other[equal:middle]:
            equal = middle
        else:
            end = middle
    return equal
