"""The scheduler over a pipeline in virtual time: how busy the stages are, and who waits (F04)."""

from __future__ import annotations

import heapq
import statistics
from collections.abc import Callable

import pytest

from meshinfer.core.step import Sampled
from meshinfer.serve.scheduler import Scheduler, SchedulerLimits
from meshinfer.serve.sequence import Sequence
from meshinfer.serve.step_cost import StepCost
from tests.serve.bookkeeping import sequence


class Pipeline:
    """Stages that take `step_s(tokens)` each, as they measured, and hops that take `hop_s`."""

    def __init__(self, stages: int, step_s: Callable[[int], float], hop_s: float = 0.0) -> None:
        self.now = 0.0
        curve = [(tokens, step_s(tokens)) for tokens in (1, 2, 4, 8, 16, 32, 64, 256)]
        self.cost = StepCost(stages, [curve] * stages)
        self.scheduler = Scheduler(SchedulerLimits(16384, 32), self.cost)
        self.tokens: dict[int, list[float]] = {}  # when each sequence got its tokens
        self._free = [0.0] * stages
        self._step_s, self._hop_s = step_s, hop_s
        self._back: list[tuple[float, int, int, float, int, int]] = []

    def run(self, until: Callable[[], bool]) -> None:
        for _ in range(100_000):
            if until():
                return
            while (step := self.scheduler.next_step()) is not None:
                at, seconds = self.now, self._step_s(len(step.tokens))
                for stage, free in enumerate(self._free):
                    at = max(at + self._hop_s, free) + seconds
                    self._free[stage] = at
                prompt = sum(row.count for row in step.rows if not row.decodes)
                drawn = sum(row.logits for row in step.rows)
                entry = (at + self._hop_s, step.number, drawn, seconds, len(step.tokens), prompt)
                heapq.heappush(self._back, entry)
            if not self._back:
                return
            self.now, number, drawn, seconds, tokens, prompt = heapq.heappop(self._back)
            hops_s = self._hop_s * (len(self._free) + 1)
            self.cost.observe(tokens, [seconds] * len(self._free), hops_s, prompt)
            for advance in self.scheduler.commit(number, [Sampled(1)] * drawn):
                self.tokens.setdefault(id(advance.sequence), []).append(self.now)

    def speed(self, users: int, tokens: int = 200) -> float:
        """Tokens a second of all users together."""
        asked = [sequence([index] * 5, tokens) for index in range(users)]
        self.scheduler.admit(*asked)
        self.run(lambda: not self.scheduler.running + self.scheduler.waiting)
        return users * tokens / self.now


def test_three_equal_stages_are_busy_with_three_requests() -> None:
    """F04: stages of 20 ms whatever they carry, and stages that take 20 ms a token."""
    for step_s in (lambda tokens: 0.02, lambda tokens: 0.02 * tokens):
        one, three, six = (Pipeline(3, step_s).speed(users) for users in (1, 3, 6))
        assert three >= 2.4 * one
        assert six >= three


def test_long_hops_do_not_leave_stages_idle() -> None:
    """Two stages, 100 ms a hop, 10 ms a token: one step in flight a stage would give a quarter."""
    many = Pipeline(2, lambda tokens: 0.01 * tokens, hop_s=0.1).speed(32)
    assert many >= 0.8 / 0.01


def gaps(pipeline: Pipeline, some: list[Sequence], begin: float, end: float) -> list[float]:
    found = []
    for one in some:
        times = [at for at in pipeline.tokens[id(one)] if begin <= at <= end]
        found += [b - a for a, b in zip(times, times[1:], strict=False)]
    return found


@pytest.mark.parametrize("users", [1, 4, 16])
def test_others_keep_their_pace_while_a_long_prompt_arrives(users: int) -> None:
    """p99 of the time between tokens at most 2.5 times the undisturbed median."""
    pipeline = Pipeline(2, lambda tokens: 0.035 + 0.004 * max(0, tokens - 4), hop_s=0.0005)
    others = [sequence([index] * 8, 4000) for index in range(users)]
    pipeline.scheduler.admit(*others)
    pipeline.run(lambda: all(one.drawn > 60 for one in others))
    quiet = gaps(pipeline, others, pipeline.now / 2, pipeline.now)
    long = sequence(list(range(4000)), 1)
    begin = pipeline.now
    pipeline.scheduler.admit(long)
    pipeline.run(lambda: long.drawn > 0)
    disturbed = sorted(gaps(pipeline, others, begin, pipeline.now))
    assert len(disturbed) > 50
    assert disturbed[int(0.99 * len(disturbed))] <= 2.5 * statistics.median(quiet)
    assert pipeline.now - begin < 5 * 4000 * 0.004
