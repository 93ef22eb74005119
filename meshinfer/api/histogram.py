"""A histogram with fixed bounds: observations in, a Distribution out."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

from meshinfer.api.exposition import Distribution


class Histogram:
    """`bounds` ascend; what is above the last one is counted in no bucket of its own."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Counts `value` as if it had been seen `times` times. A bucket includes its bound."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._total += value * times

    def distribution(self) -> Distribution:
        """What has been seen so far."""
        *sums, count = accumulate(self._counts)
        return Distribution(tuple(zip(self._bounds, sums, strict=True)), count, self._total)
