"""How fast the ring is, and which stage or hop is slow. Pure arithmetic over step outcomes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from meshinfer.core.step import StageTiming
from meshinfer.serve.ring import StepOutcome

_WINDOW_S = 10.0
_WEIGHT = 0.1  # of the newest step in the moving averages


@dataclass(frozen=True, slots=True)
class StageSpeed:
    """Moving averages of one stage, in milliseconds a step."""

    wait_ms: float
    queue_ms: float
    compute_ms: float
    handle_ms: float


@dataclass(frozen=True, slots=True)
class RingSpeed:
    stages: tuple[StageSpeed, ...]
    wire_ms: float  # a hop: what of the round trip no stage accounts for
    tokens_per_s: float  # over the last ten seconds
    steps: int
    tokens: int


class RingStatistics:
    """`clock` is monotonic seconds."""

    def __init__(self, stages: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._averages = [[0.0] * 4 for _ in range(stages)]
        self._wire_us = 0.0
        self._recent: deque[tuple[float, int]] = deque()
        self._steps = 0
        self._tokens = 0

    def record(self, outcome: StepOutcome) -> None:
        """Count one step that came back."""
        weight = 1.0 if self._steps == 0 else _WEIGHT
        for average, timing in zip(self._averages, outcome.timings, strict=False):
            _blend(average, timing, weight)
        busy = sum(t.queue_us + t.compute_us + t.handle_us for t in outcome.timings)
        hops = len(outcome.timings) + 1
        wire = max(0, outcome.round_trip_us - busy) / hops
        self._wire_us += (wire - self._wire_us) * weight
        self._steps += 1
        self._tokens += len(outcome.drawn)
        self._recent.append((self._clock(), len(outcome.drawn)))
        self._drop_old()

    def speed(self) -> RingSpeed:
        """The averages now."""
        self._drop_old()
        tokens = sum(count for _, count in self._recent)
        span = self._clock() - self._recent[0][0] if self._recent else 0.0
        return RingSpeed(
            stages=tuple(StageSpeed(*(value / 1000 for value in one)) for one in self._averages),
            wire_ms=self._wire_us / 1000,
            tokens_per_s=tokens / span if span > 0.05 else 0.0,
            steps=self._steps,
            tokens=self._tokens,
        )

    def _drop_old(self) -> None:
        oldest = self._clock() - _WINDOW_S
        while self._recent and self._recent[0][0] < oldest:
            self._recent.popleft()


def _blend(average: list[float], timing: StageTiming, weight: float) -> None:
    values = (timing.wait_us, timing.queue_us, timing.compute_us, timing.handle_us)
    for index, value in enumerate(values):
        average[index] += (value - average[index]) * weight
