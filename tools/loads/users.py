"""Users who ask at the same time: so many who wait for their answers, or as many as arrive."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from tools.loads.arrivals import ThinkTime, poisson
from tools.loads.exchange import Answer, Question, Target, ask

BUSY = "http 429"
LEAST_WAIT_S, MOST_WAIT_S = 0.1, 60.0
"""Bounds of what a Retry-After may ask for; without one it is the first."""

MOST_IN_FLIGHT = 2000
"""Arrivals beyond it are counted as dropped: so many sockets is what a process usually may have."""


@dataclass(frozen=True, slots=True)
class Extent:
    """When to stop asking; the questions that are under way are waited for."""

    duration_s: float | None
    requests: int | None
    patience_s: float = 300.0
    waits_when_busy: bool = True  # else a 429 is an answer like any other fault


@dataclass(frozen=True, slots=True)
class Asked:
    """One question of a run and what became of it, with the 429s on the way."""

    question: Question
    answer: Answer
    refusals: int


class Crowd:
    """All users of one run. `next_question` makes what the next of them asks."""

    def __init__(
        self, target: Target, next_question: Callable[[], Question], extent: Extent, seed: int
    ) -> None:
        self.asked: list[Asked] = []
        self.dropped = 0
        self._target = target
        self._next_question = next_question
        self._extent = extent
        self._chance = random.Random(seed)
        self._left = extent.requests
        self._in_flight = 0
        self._began = 0.0

    async def closed(self, users: int, think: ThinkTime) -> float:
        """`users` at once, each asks again after its answer and a think time. Seconds it took."""
        self._began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(users):
                group.create_task(self._user(think))
        return time.perf_counter() - self._began

    async def open(self, rate: float) -> float:
        """Questions arrive by themselves, `rate` a second, whoever still waits. Seconds it took."""
        self._began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for moment in poisson(rate, self._chance):
                await asyncio.sleep(self._began + moment - time.perf_counter())
                if not self._goes_on():
                    break
                if self._in_flight >= MOST_IN_FLIGHT:
                    self.dropped += 1
                    continue
                group.create_task(self._ask(self._next_question()))
        return time.perf_counter() - self._began

    async def _user(self, think: ThinkTime) -> None:
        while self._goes_on():
            await self._ask(self._next_question())
            await asyncio.sleep(think.pause_s(self._chance))

    def _goes_on(self) -> bool:
        """Takes one of the questions that are left."""
        duration_s = self._extent.duration_s
        if duration_s is not None and time.perf_counter() - self._began >= duration_s:
            return False
        if self._left is not None:
            if self._left <= 0:
                return False
            self._left -= 1
        return True

    async def _ask(self, question: Question) -> None:
        refusals = 0
        self._in_flight += 1
        while True:
            answer = await ask(self._target, question, self._extent.patience_s)
            if answer.fault != BUSY or not self._extent.waits_when_busy or self._is_late():
                break
            refusals += 1
            wait_s = answer.retry_after_s or LEAST_WAIT_S
            await asyncio.sleep(min(max(wait_s, LEAST_WAIT_S), MOST_WAIT_S))
        self._in_flight -= 1
        self.asked.append(Asked(question, answer, refusals))

    def _is_late(self) -> bool:
        """Nobody waits for a busy server beyond the end of the run and a patience."""
        limit_s = (self._extent.duration_s or 0.0) + self._extent.patience_s
        return time.perf_counter() - self._began > limit_s
