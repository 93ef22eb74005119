"""How long a step takes on every stage, by its number of tokens. Pure.

Begins with what calibration measured when the stages were loaded and learns from every step, so
that the scheduler sizes micro-batches and prompt chunks for these PCs as they are now.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from meshinfer.serve.ring import StepOutcome

_WEIGHT = 0.2  # of the newest step in a moving average
_FAST_WEIGHT = 0.3
"""Of the newest step in what prompts cost beside others: a prompt's context grows by the step."""

_FACTORS = (0.5, 16.0)
_WHOLE_CHUNK = 32
"""Tokens from which on a step of prompts alone tells of chunks; less is the end of one."""

_TRIED_SLOPE = 0.05  # of a step's time, for every token more

_PROMPT_CHUNKS = (16, 32, 48, 64, 96, 128, 192, 256)
_UNKNOWN_CHUNK = 64

Curve = Sequence[tuple[int, float]]
"""(tokens, seconds of a step), ascending."""


@dataclass(slots=True)
class _Point:
    tokens: float
    seconds: float


class StageCost:
    """One stage: a moving average for every power of two of tokens, linear in between."""

    def __init__(self, curve: Curve = ()) -> None:
        self._points = {_bucket(tokens): _Point(tokens, seconds) for tokens, seconds in curve}
        self._sorted: list[_Point] | None = None

    def observe(self, tokens: int, seconds: float) -> None:
        point = self._points.setdefault(_bucket(tokens), _Point(tokens, seconds))
        point.tokens += (tokens - point.tokens) * _WEIGHT
        point.seconds += (seconds - point.seconds) * _WEIGHT
        for bucket, other in self._points.items():
            # Fewer tokens never take longer: what was slow once is not believed for ever.
            if bucket < _bucket(tokens) and other.seconds > point.seconds:
                other.seconds += (point.seconds - other.seconds) * _WEIGHT
        self._sorted = None

    def seconds(self, tokens: int) -> float | None:
        """An estimate that never falls with more tokens; None while nothing is known."""
        points = self._ascending()
        if not points:
            return None
        place = bisect_left([point.tokens for point in points], tokens)
        if place == 0:
            return points[0].seconds
        if place < len(points):
            return _between(points[place - 1], points[place], tokens)
        if len(points) == 1:  # no slope is known: as if all time were spent a token
            return points[0].seconds * tokens / points[0].tokens
        return _between(points[-2], points[-1], tokens)

    def try_seconds(self, tokens: int) -> float | None:
        """The same for steps that may be tried: where a single size is known, larger ones are taken
        for cheap, as they are where reading the weights is what takes time. The first of them
        tells."""
        points = self._ascending()
        if len(points) == 1 and tokens > points[0].tokens:
            return points[0].seconds * (1 + _TRIED_SLOPE * (tokens / points[0].tokens - 1))
        return self.seconds(tokens)

    def _ascending(self) -> list[_Point]:
        if self._sorted is None:
            highest, self._sorted = 0.0, []
            for _, point in sorted(self._points.items()):
                highest = max(highest, point.seconds)
                self._sorted.append(_Point(point.tokens, highest))
        return self._sorted


class StepCost:
    """All stages of a pipeline and the hops between them."""

    def __init__(self, stages: int, curves: Sequence[Curve] = ()) -> None:
        self._stages = [StageCost(curve) for curve in curves] or [
            StageCost() for _ in range(stages)
        ]
        self._hops_s = 0.0
        self._prompt_factor = (
            1.0  # what prompt tokens cost now, over what they cost without context
        )
        self._observed = 0
        self._groups: dict[int, int] = {}

    @property
    def stages(self) -> int:
        return len(self._stages)

    def take(self, outcome: StepOutcome) -> None:
        """Observer of the decode loop."""
        timings = outcome.timings
        if len(timings) != len(self._stages) or not outcome.tokens:
            return
        busy = sum(one.queue_us + one.compute_us + one.handle_us for one in timings)
        hops_s = max(0, outcome.round_trip_us - busy) / 1e6
        seconds = [(one.compute_us + one.handle_us) / 1e6 for one in timings]
        self.observe(outcome.tokens, seconds, hops_s, outcome.prompt_tokens)

    def observe(
        self,
        tokens: int,
        stage_seconds: Sequence[float],
        hops_s: float,
        prompt_tokens: int = 0,
    ) -> None:
        """A step came back. `hops_s` is what of its round trip no stage accounts for."""
        if 0 < prompt_tokens < tokens:
            self._observe_company(tokens - prompt_tokens, tokens, max(stage_seconds))
        elif not prompt_tokens or tokens >= _WHOLE_CHUNK:
            for stage, seconds in zip(self._stages, stage_seconds, strict=True):
                stage.observe(tokens, seconds)
        weight = _WEIGHT if self._observed else 1.0
        self._hops_s += (hops_s - self._hops_s) * weight
        self._observed += 1
        if self._observed % 16 == 0:
            self._groups.clear()

    def _observe_company(self, rows: int, tokens: int, seconds: float) -> None:
        """Prompt tokens beside decoding rows. Their cost grows with the prompt's context, and a
        small chunk of a long prompt pays most of it: that is what the factor follows."""
        alone, together = self.slowest(rows), self.slowest(tokens)
        if alone is None or together is None or together <= alone:
            return
        least, most = _FACTORS
        factor = min(max((seconds - alone) / (together - alone), least), most)
        self._prompt_factor += (factor - self._prompt_factor) * _FAST_WEIGHT

    def stage_seconds(self, stage: int, tokens: int) -> float | None:
        return self._stages[stage].seconds(tokens)

    def slowest(self, tokens: int) -> float | None:
        """Seconds of the stage that takes longest."""
        found = [stage.seconds(tokens) for stage in self._stages]
        known = [seconds for seconds in found if seconds is not None]
        return max(known) if len(known) == len(found) else None

    def round_trip(self, tokens: int) -> float | None:
        """Seconds through all stages and hops, with nobody in the way."""
        found = [stage.seconds(tokens) for stage in self._stages]
        known = [seconds for seconds in found if seconds is not None]
        return sum(known) + self._hops_s if len(known) == len(found) else None

    def cycle(self, rows: int, groups: int) -> float | None:
        """Seconds from one step of so many rows to the next of the same sequences, when `groups`
        such steps are under way; None while nothing is known."""
        found = [stage.try_seconds(rows) for stage in self._stages]
        known = [seconds for seconds in found if seconds is not None]
        if len(known) < len(found):
            return None
        return max(sum(known) + self._hops_s, groups * max(known))

    def groups(self, sequences: int) -> int:
        """Into how many steps to deal so many decoding sequences, so that each gets its next token
        soonest: more groups keep more stages and longer hops busy, fewer read the weights less
        often. As many as there are stages while nothing is known."""
        most = max(1, sequences)
        if most not in self._groups:
            self._groups[most] = self._best_groups(most)
        return self._groups[most]

    def _best_groups(self, sequences: int) -> int:
        best, best_s = min(self.stages, sequences), None
        for groups in range(1, min(sequences, 8 * self.stages) + 1):
            rows = -(-sequences // groups)
            alone, slowest = self.round_trip(rows), self.slowest(rows)
            if alone is None or slowest is None:
                return best
            cycle_s = max(alone, groups * slowest)
            # 2 % for nothing is noise; fewer steps cost the leader less.
            if best_s is None or cycle_s < 0.98 * best_s:
                best, best_s = groups, cycle_s
        return best

    def prompt_chunk(self, pending: int, most: int) -> int:
        """Tokens of a prompt that go into one step when nobody else waits: small enough that its
        chunks fill the pipeline, large enough that each is worth its step."""
        if self.stages == 1:
            return min(pending, most)
        best, best_s = min(_UNKNOWN_CHUNK, most), None
        for chunk in (*_PROMPT_CHUNKS, most):
            slowest = self.slowest(chunk)
            if chunk > most or slowest is None:
                continue
            steps = -(-pending // chunk)
            seconds = (steps + self.stages - 1) * slowest
            if best_s is None or seconds < best_s:
                best, best_s = chunk, seconds
        # Even chunks: the last one of 65 tokens in chunks of 64 would cost a step of its own.
        return min(pending, -(-pending // -(-pending // best)))

    def tokens_beside(self, rows: int, usual_rows: int, stretch: float, most: int) -> int:
        """Prompt tokens that a step of `rows` decoding ones may carry, so that it takes at most
        `stretch` times as long as a step of `usual_rows` alone."""
        usual, alone = self.slowest(max(1, usual_rows)), self.slowest(max(1, rows))
        if usual is None or alone is None:
            return min(_UNKNOWN_CHUNK, most)
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            together = self.slowest(rows + middle)
            assert together is not None
            if alone + (together - alone) * self._prompt_factor <= stretch * usual:
                low = middle
            else:
                high = middle - 1
        return low


def _bucket(tokens: int) -> int:
    return max(0, tokens - 1).bit_length()


def _between(left: _Point, right: _Point, tokens: int) -> float:
    span = right.tokens - left.tokens
    if span <= 0:
        return right.seconds
    return left.seconds + (right.seconds - left.seconds) * (tokens - left.tokens) / span
