"""Time as an argument: the event loop's clock, and one that a test moves by hand.

Seconds are monotonic and have no meaning outside their own clock. In-memory links take a `Clock`,
so that a test of delays and timeouts neither sleeps nor depends on the machine.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from itertools import count
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Monotonic seconds."""
        ...

    def call_at(self, when: float, callback: Callable[[], None]) -> None:
        """Run `callback` once `now()` has reached `when`."""
        ...


class LoopClock:
    """The clock of the running event loop."""

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def call_at(self, when: float, callback: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_at(when, callback)


class ManualClock:
    """Stands still until `advance` is called; then everything that fell due runs, in order."""

    def __init__(self, start_s: float = 1000.0) -> None:
        self._now = start_s
        self._order = count()
        self._due: list[tuple[float, int, Callable[[], None]]] = []

    def now(self) -> float:
        return self._now

    def call_at(self, when: float, callback: Callable[[], None]) -> None:
        heapq.heappush(self._due, (when, next(self._order), callback))

    def advance(self, seconds: float) -> None:
        """Move forward; each callback sees the moment for which it was asked."""
        end = self._now + seconds
        while self._due and self._due[0][0] <= end:
            when, _, callback = heapq.heappop(self._due)
            self._now = max(self._now, when)
            callback()
        self._now = end


async def sleep(clock: Clock, seconds: float) -> None:
    """Until `clock` has moved on by `seconds`."""
    woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake() -> None:
        if not woken.done():
            woken.set_result(None)

    clock.call_at(clock.now() + seconds, wake)
    await woken
