"""How many pieces to have in flight on a link. Pure: the time is an argument.

Enough to hide the way there and back on a fast link; few on a slow one, because what is asked of
one PC is not asked of another that may get it sooner.
"""

from __future__ import annotations

import math

LEAST = 2
AHEAD_S = 0.25
_SHARE = 0.3  # of the newest interval in the average


class Pace:
    """`most` bounds the memory: pieces are 1 MiB each."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._interval_s: float | None = None
        self._since: float | None = None

    @property
    def window(self) -> int:
        if self._interval_s is None:
            return min(LEAST, self._most)
        ahead = math.ceil(AHEAD_S / max(self._interval_s, 1e-4))
        return min(self._most, max(LEAST, ahead))

    def asked(self, now: float) -> None:
        """A request goes out; while none is out, time does not count."""
        if self._since is None:
            self._since = now

    def arrived(self, now: float, left: int) -> None:
        """A piece came; `left` are still in flight."""
        if self._since is not None:
            taken_s = now - self._since
            old_s = taken_s if self._interval_s is None else self._interval_s
            self._interval_s = (1 - _SHARE) * old_s + _SHARE * taken_s
        self._since = now if left else None

    def cut(self) -> None:
        """The link ended, and what was in flight with it."""
        self._since = None
