"""When users ask: the pauses of a closed loop and the arrivals of an open one. Pure: chance is an
argument."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ThinkTime:
    """What a user does between an answer and the next question."""

    mean_s: float = 0.0
    is_fixed: bool = False  # else exponential

    def pause_s(self, chance: random.Random) -> float:
        if self.mean_s <= 0 or self.is_fixed:
            return max(0.0, self.mean_s)
        return chance.expovariate(1.0 / self.mean_s)

    @classmethod
    def parse(cls, text: str) -> ThinkTime:
        """`2`, `2s`, `exp:2`, `fixed:2`: seconds. Raises ValueError."""
        kind, _, figure = text.rpartition(":")
        mean_s = float(figure.removesuffix("s"))
        if kind not in ("", "fixed", "exp") or not 0 <= mean_s < 1e6:
            raise ValueError(f"'{text}' is no think time; give fixed:SECONDS or exp:SECONDS")
        return cls(mean_s, kind != "exp")


def poisson(rate: float, chance: random.Random) -> Iterator[float]:
    """Moments in seconds from the start at which somebody asks, without end; `rate` a second."""
    moment = 0.0
    while True:
        moment += chance.expovariate(rate)
        yield moment
