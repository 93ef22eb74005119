"""How late this agent's event loop is: a held one delays heartbeats, tokens and answers (N08)."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

EVERY_S = 0.25
WINDOW = 240  # samples: a minute
WORTH_SAYING_S = 0.2
"""Heartbeats go out every second; a loop that is later than this is being held by something."""

log = logging.getLogger(__name__)


class LoopLag:
    """`clock` is monotonic seconds. Pure but for `run`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._samples: deque[float] = deque(maxlen=WINDOW)

    @property
    def worst_s(self) -> float:
        """Of the last minute."""
        return max(self._samples, default=0.0)

    def note(self, late_s: float) -> None:
        """A timer fired so much later than it should have."""
        if late_s > WORTH_SAYING_S and late_s > self.worst_s:
            log.warning("the event loop was held for %.0f ms", 1000 * late_s)
        self._samples.append(max(0.0, late_s))

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            due = self._clock() + EVERY_S
            await asyncio.sleep(EVERY_S)
            self.note(self._clock() - due)
