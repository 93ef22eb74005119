"""How figures spread: median, tail and worst, by nearest rank."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """In the unit of the figures."""

    count: int
    p50: float
    p90: float
    p99: float
    most: float


def spread(figures: Iterable[float]) -> Spread | None:
    """None when there are no figures."""
    ordered = sorted(figures)
    if not ordered:
        return None
    return Spread(
        len(ordered),
        percentile(ordered, 50),
        percentile(ordered, 90),
        percentile(ordered, 99),
        ordered[-1],
    )


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The smallest figure that at least `percent` of all do not exceed: one that was measured.

    `ordered` ascends and is not empty.
    """
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]
