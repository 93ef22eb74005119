"""A loaded stage's step times, measured: a loaded stage goes in, a StepCurve comes out.

Called while a stage is calibrated, on the engine's thread. The clock is given.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshinfer.core.step import Row, Step
from meshinfer.core.step_curve import Points, StepCurve
from meshinfer.engine.selftest import fixed_input
from meshinfer.engine.stage import Stage

Clock = Callable[[], float]
"""Seconds, never backwards."""

DECODE_ROWS = (1, 4, 8, 16, 2, 32)
"""In the order of measuring: the first three tell already whether a candidate is worth the rest."""

PREFILL_TOKENS = (64, 256, 16)
"""256 is the largest chunk that the scheduler makes."""

QUICK_ROWS = (1, 4, 16)
"""For a stage whose configuration is not in question."""

CACHED_TOKENS = 64
"""What each decoding sequence has in its cache: at 1.5B the cache is not felt yet, so the curve
tells what the weights and activations cost."""

TRIAL_CACHE_TOKENS = 2048
"""Room that measuring needs, with blocks of up to 32 tokens: 32 sequences that share a beginning
and have a block each. A candidate gets no more than that, whatever its cache precision."""

ENOUGH_POINTS = 3
_MOST_ROUNDS = 5
_POINT_S = 0.25
"""Seconds spent on a point before no other round begins. A first run that takes longer counts: the
cost of a shape's first use is small beside it once the weights are packed."""

_STEADY = 1.1
"""The same step, a few seconds later: within a tenth it was a quiet time."""

_BASE = 2**32 - 4  # no real sequence is numbered so high; others count down from here


@dataclass(frozen=True, slots=True)
class Sizes:
    """What to measure, in this order."""

    decode: tuple[int, ...] = DECODE_ROWS
    prefill: tuple[int, ...] = PREFILL_TOKENS


@dataclass(frozen=True, slots=True)
class Timing:
    """`is_complete`: every size that fits the cache was measured."""

    curve: StepCurve
    is_complete: bool


def measure(
    stage: Stage,
    clock: Clock,
    sizes: Sizes | None = None,
    is_hopeless: Callable[[StepCurve], bool] = lambda _: False,
    deadline_s: float = math.inf,
) -> Timing:
    """Median seconds of each size. Ends early when `is_hopeless` says so of three points or more,
    or at a time of the clock. Leaves the cache as it found it. Raises StageFailed.

    The PC may be busy for a moment. What looks hopeless, or gives another time for the same step at
    the end than at the beginning, is looked at a second time and the lower times count."""
    bench = _Bench(stage, clock, deadline_s)
    chosen = sizes or Sizes()
    try:
        first = _measured(bench, chosen, is_hopeless)
        if bench.is_late or (first.is_complete and bench.is_steady(first.curve)):
            return first
        second = _measured(bench, chosen, lambda curve: is_hopeless(lower(first.curve, curve)))
        is_complete = first.is_complete or second.is_complete
        return Timing(lower(first.curve, second.curve), is_complete)
    finally:
        bench.release()


def _measured(bench: _Bench, sizes: Sizes, is_hopeless: Callable[[StepCurve], bool]) -> Timing:
    decode: dict[int, float] = {}
    prefill: dict[int, float] = {}

    def curve() -> StepCurve:
        return StepCurve(tuple(sorted(decode.items())), tuple(sorted(prefill.items())))

    def is_over() -> bool:
        return bench.is_late or (len(decode) >= ENOUGH_POINTS and is_hopeless(curve()))

    for rows in bench.fitting_rows(sizes.decode):
        decode[rows] = bench.decode_s(rows)
        if is_over():
            return Timing(curve(), False)
    bench.release()
    for tokens in bench.fitting_tokens(sizes.prefill):
        prefill[tokens] = bench.prefill_s(tokens)
        if is_over():
            return Timing(curve(), False)
    bench.release()
    return Timing(curve(), True)


def lower(one: StepCurve, other: StepCurve) -> StepCurve:
    """Of every size that either has, the lower time: that of the quieter moment."""
    return StepCurve(
        _lower_points(one.decode, other.decode), _lower_points(one.prefill, other.prefill)
    )


def _lower_points(one: Points, other: Points) -> Points:
    lowest = dict(one)
    for size, seconds in other:
        lowest[size] = min(seconds, lowest.get(size, seconds))
    return tuple(sorted(lowest.items()))


class _Bench:
    """Runs steps of a size. One sequence holds the beginning that all decoding ones share."""

    def __init__(self, stage: Stage, clock: Clock, deadline_s: float) -> None:
        self._stage = stage
        self._clock = clock
        self._deadline_s = deadline_s
        shape = stage.shape
        self._blocks = shape.cache_tokens // shape.block_size
        # A cache of a single block has no room for a beginning beside a row.
        self._cached = min(CACHED_TOKENS, shape.cache_tokens // 2) if self._blocks > 1 else 0
        self._inputs = fixed_input(shape, max(*DECODE_ROWS, *PREFILL_TOKENS, self._cached))
        self._sequences: set[int] = set()

    @property
    def is_late(self) -> bool:
        return self._clock() >= self._deadline_s

    def is_steady(self, curve: StepCurve) -> bool:
        """Whether the smallest step takes as long as it did."""
        rows, seconds = curve.decode[0]
        again = self.decode_s(rows)
        return max(again, seconds) <= _STEADY * min(again, seconds)

    def fitting_rows(self, wanted: tuple[int, ...]) -> tuple[int, ...]:
        """Those for which the cache has a block a row beside the beginning; 1 at least."""
        shared = -(-self._cached // self._stage.shape.block_size)
        fitting = tuple(rows for rows in wanted if shared + rows <= self._blocks)
        return fitting or (1,)

    def fitting_tokens(self, wanted: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(tokens for tokens in wanted if tokens <= self._stage.shape.cache_tokens)

    def decode_s(self, rows: int) -> float:
        """Median seconds of a step with one token of each of `rows` sequences."""
        if self._cached and _BASE not in self._sequences:
            self._run((Row(_BASE, 0, self._cached, 1),))
            self._sequences.add(_BASE)
        names = [_BASE - 1 - number for number in range(rows)]
        known = self._sequences if self._cached else set(names)
        first = tuple(
            Row(name, self._cached, 1, 1, fork_from=None if name in known else _BASE)
            for name in names
        )
        again = tuple(Row(name, self._cached, 1, 1) for name in names)
        self._sequences.update(names)
        return self._median(first, again)

    def prefill_s(self, tokens: int) -> float:
        """Median seconds of a step with the first `tokens` of a prompt."""
        row = (Row(_BASE, 0, tokens, 1),)
        self._sequences.add(_BASE)
        return self._median(row, row)

    def release(self) -> None:
        gone = tuple(self._sequences)
        self._sequences.clear()
        self._stage.forward(Step(0, (), (), released=gone), self._hidden(self._inputs[:0]))

    def _median(self, first: tuple[Row, ...], again: tuple[Row, ...]) -> float:
        warming = self._run(first)
        times = [warming] if warming > _POINT_S else []
        while not times or (len(times) < _MOST_ROUNDS and sum(times) < _POINT_S):
            times.append(self._run(again))
        return max(1e-9, statistics.median(times))

    def _run(self, rows: tuple[Row, ...]) -> float:
        """Seconds."""
        values = self._inputs[: sum(row.count for row in rows)]
        is_first = self._stage.shape.first
        tokens = tuple(values.tolist()) if is_first else (0,) * len(values)
        step = Step(0, rows, tokens)
        hidden = self._hidden(values)
        begin = self._clock()
        self._stage.forward(step, hidden)
        return self._clock() - begin

    def _hidden(self, values: NDArray[Any]) -> NDArray[Any] | None:
        return None if self._stage.shape.first else np.ascontiguousarray(values)
