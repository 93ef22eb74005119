"""A figure that costs a system call or a look at the disk, and is asked for ten times a second."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Remembered(Generic[T]):
    """`measure` is called again when its last answer is older than `age_s`."""

    def __init__(
        self, measure: Callable[[], T], age_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._measure = measure
        self._age_s = age_s
        self._clock = clock
        self._known: tuple[float, T] | None = None

    def get(self) -> T:
        now = self._clock()
        if self._known is None or now - self._known[0] >= self._age_s:
            self._known = (now, self._measure())
        return self._known[1]
