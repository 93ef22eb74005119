"""How long a step takes, by what is in it: measured points, straight lines in between. Pure.

A calibrated stage tells its curve; scheduler, speculation and planner ask it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

Points = tuple[tuple[int, float], ...]
"""(rows or tokens, seconds), ascending and positive."""


@dataclass(frozen=True, slots=True)
class StepCurve:
    """`decode` has steps of one token of each of so many sequences, `prefill` steps of so many
    tokens of one sequence. Raises ValueError: no decode point, or points that cannot be."""

    decode: Points
    prefill: Points = ()

    def __post_init__(self) -> None:
        if not self.decode:
            raise ValueError("a step curve without a point")
        for points in (self.decode, self.prefill):
            _check(points)

    def decode_s(self, rows: int) -> float:
        """Seconds of a step with one new token of each of `rows` sequences. Also the estimate for
        verifying so many tokens of one sequence: the matrices have the same shapes."""
        return _between(self.decode, rows)

    def prefill_s(self, tokens: int) -> float:
        """Seconds of a step with a prompt chunk of `tokens`; below the smallest chunk that was
        measured, on the line from the smallest decode step."""
        if not self.prefill:
            return _between(self.decode, tokens)
        small = tuple(point for point in self.decode[:1] if point[0] < self.prefill[0][0])
        return _between((*small, *self.prefill), tokens)


def _check(points: Points) -> None:
    counts = [count for count, _ in points]
    if any(count < 1 for count in counts) or sorted(set(counts)) != counts:
        raise ValueError(f"the sizes {counts} of a step curve do not ascend")
    if any(not math.isfinite(seconds) or seconds <= 0 for _, seconds in points):
        raise ValueError("a step curve has times that are not positive")


def _between(points: Points, count: int) -> float:
    """Linear between neighbours; constant below the first; beyond the last the last two points'
    slope goes on, but never downwards."""
    if count <= points[0][0] or len(points) == 1:
        return points[0][1]
    pairs = zip(points, points[1:], strict=False)
    left, right = next((pair for pair in pairs if count <= pair[1][0]), points[-2:])
    slope = (right[1] - left[1]) / (right[0] - left[0])
    if count > right[0]:
        return right[1] + max(0.0, slope) * (count - right[0])
    return left[1] + slope * (count - left[0])
