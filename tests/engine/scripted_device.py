"""Toy stages whose steps take as long, and err as much, as a script says: a device to calibrate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshinfer.core.configuration import Configuration
from meshinfer.core.model import UnitRange
from meshinfer.core.step import Step
from meshinfer.engine.stage import StageShape
from meshinfer.engine.toy import ToyModel, ToyStage
from meshinfer.errors import StageFailed

TOY = ToyModel(layers=1, hidden_size=4)
WHOLE, FIRST_HALF, SECOND_HALF = UnitRange(0, 4), UnitRange(0, 2), UnitRange(2, 4)


class HandClock:
    """Seconds that pass only when somebody says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True, slots=True)
class Behaviour:
    """Of one configuration. `error` is the share of the output's size that is added as noise."""

    step_s: float = 0.1
    token_s: float = 0.01
    error: float = 0.0
    load_s: float = 1.0
    fails: str = ""
    forgets: bool = False  # every step leaves a trace in all later ones
    delay: Callable[[int], float] = lambda _: 1.0  # how busy the PC is, by tokens of a step


class ScriptedStage:
    """A toy stage on the clock. Implements engine.stage.Stage."""

    def __init__(self, stage: ToyStage, behaviour: Behaviour, clock: HandClock) -> None:
        self._stage = stage
        self._behaviour = behaviour
        self._clock = clock
        self._steps = 0
        self.is_closed = False

    @property
    def shape(self) -> StageShape:
        return self._stage.shape

    def forward(self, step: Step, hidden: NDArray[Any] | None) -> NDArray[Any]:
        output = self._stage.forward(step, hidden)
        if not step.rows:
            return output
        seconds = self._behaviour.step_s + self._behaviour.token_s * step.token_count
        self._clock.now += seconds * self._behaviour.delay(step.token_count)
        self._steps += 1
        random = np.random.Generator(np.random.Philox(7))
        # The same noise for the same tokens, wherever they stand: what the self-test demands.
        noise = random.standard_normal(output.shape[1]).astype(np.float32)
        scale = np.float32(self._behaviour.error) * np.abs(output).mean()
        trace = self._steps if self._behaviour.forgets else 0
        return output + scale * noise + np.float32(trace)

    def cached(self, sequence: int) -> int:
        return self._stage.cached(sequence)

    def close(self) -> None:
        self.is_closed = True
        self._stage.close()


class ScriptedDevice:
    """Loads stages as `script` says; never two at a time."""

    def __init__(
        self,
        script: Callable[[Configuration], Behaviour],
        units: UnitRange = WHOLE,
        cache_tokens: int = 2048,
    ) -> None:
        self.clock = HandClock()
        self.loaded: list[Configuration] = []
        self._script = script
        self._units = units
        self._cache_tokens = cache_tokens
        self._open: list[ScriptedStage] = []

    def load(self, configuration: Configuration) -> ScriptedStage:
        """The factory."""
        assert all(stage.is_closed for stage in self._open), "two candidates at a time"
        behaviour = self._script(configuration)
        self.loaded.append(configuration)
        self.clock.now += behaviour.load_s
        if behaviour.fails:
            raise StageFailed(behaviour.fails)
        stage = ScriptedStage(
            ToyStage(self._units, TOY, self._cache_tokens, 32), behaviour, self.clock
        )
        self._open.append(stage)
        return stage

    @property
    def is_idle(self) -> bool:
        return all(stage.is_closed for stage in self._open)
