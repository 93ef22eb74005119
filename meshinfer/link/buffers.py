"""Memory for what arrives, used again as soon as nobody looks at it any more.

A fresh buffer of 1 MiB costs more than what is done with it: the system clears its pages one by
one. Used by `link.bulk`, one pool a link.
"""

from __future__ import annotations

KEPT = 16
"""Buffers that a pool keeps; more may be in use at once."""


class Buffers:
    """For one thread; views may be dropped by any other."""

    def __init__(self) -> None:
        self._kept: list[bytearray] = []

    def take(self, size: int) -> memoryview:
        """`size` writable bytes of anything. They are the caller's, and of whoever he gives a view
        to, until the last view of them is gone."""
        free = next((one for one in self._kept if len(one) >= size and _is_unseen(one)), None)
        if free is None:
            free = bytearray(size)
            self._keep(free)
        return memoryview(free)[:size]

    def _keep(self, buffer: bytearray) -> None:
        """Instead of a smaller one when there are enough."""
        if len(self._kept) == KEPT:
            smallest = min(self._kept, key=len)
            if len(smallest) >= len(buffer):
                return
            self._kept.remove(smallest)
        self._kept.append(buffer)


def _is_unseen(buffer: bytearray) -> bool:
    """A bytearray does not change its size while a view of it exists."""
    try:
        last = buffer.pop()
    except BufferError:
        return False
    buffer.append(last)
    return True
