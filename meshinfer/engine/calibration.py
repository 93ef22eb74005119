"""Finding the configuration that suits a stage on its device: load, time, judge, again.

A factory of stages goes in, trials come out and the best of them. Only one candidate is loaded at a
time. Called by the node's loading of a stage, one trial at a time on the engine's thread, so that
cancelling waits for one trial at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from meshinfer.core.configuration import Configuration
from meshinfer.core.step_curve import StepCurve
from meshinfer.engine.accuracy_guard import compare, joined, outputs, parts_of, refusal
from meshinfer.engine.calibration_input import CalibrationInput, InputKind, calibration_input
from meshinfer.engine.calibration_plan import (
    HOPELESS,
    MOST_TRIALS,
    Space,
    Trial,
    choose,
    is_contender,
    next_configuration,
    relative_time,
)
from meshinfer.engine.selftest import self_test
from meshinfer.engine.stage import Stage
from meshinfer.engine.step_timing import Clock, lower, measure
from meshinfer.errors import MeshInferError

BUDGET_S = 90.0
"""Seconds for all trials of a stage; then the best so far is taken. A trial that is being compiled
cannot be ended, so none begins that would go beyond it if it took as long as the longest did."""

Factory = Callable[[Configuration], Stage]
"""Loads a candidate. The one before is closed; what is left of it is the factory's to clear away:
two would not fit beside each other."""


@dataclass(frozen=True, slots=True)
class Calibrated:
    """What came out. The chosen configuration's trial is among `trials`, if there are any."""

    chosen: Configuration
    trials: tuple[Trial, ...]
    input_kind: InputKind
    took_s: float


class Calibration:
    """Owns nothing between two trials but results and the reference's output, which takes 39 MB for
    a vocabulary of 152 thousand."""

    def __init__(
        self,
        space: Space,
        factory: Factory,
        probe_folder: Path | None,
        clock: Clock,
        budget_s: float = BUDGET_S,
    ) -> None:
        self._space = space
        self._factory = factory
        self._folder = probe_folder
        self._clock = clock
        self._begin = clock()
        self._deadline = self._begin + budget_s
        self._longest_s = 0.0
        self._loads = 0
        self._trials: tuple[Trial, ...] = ()
        self._kind = InputKind.INVENTED
        self._reference: NDArray[Any] | None = None
        self._waiting: NDArray[Any] | None = None  # the start's, until the reference was computed

    @property
    def progress(self) -> float:
        """0..1."""
        return min(1.0, self._loads / MOST_TRIALS)

    def next(self) -> Configuration | None:
        """What `attempt` is to try; None when there is no more, or no time."""
        if self._trials and self._clock() + self._longest_s > self._deadline:
            return None
        return next_configuration(self._space, self._trials)

    def attempt(self, configuration: Configuration) -> Trial:
        """Load it, measure it, judge it, close it. Blocks for seconds. Whatever fails becomes a
        reason in the trial. What was tried before is only measured again."""
        begin = self._clock()
        earlier = next((one for one in self._trials if one.configuration == configuration), None)
        try:
            if earlier is None:
                trial = self._loaded_and_tried(configuration)
            else:
                trial = self._confirmed(earlier)
        except MeshInferError as error:
            trial = Trial(configuration, refused=error.cause)
        # The list may have changed meanwhile: the reference judges the start.
        others = tuple(one for one in self._trials if one.configuration != configuration)
        self._trials = (*others, trial)
        self._loads += 1
        self._longest_s = max(self._longest_s, self._clock() - begin)
        return trial

    def outcome(self) -> Calibrated:
        """The best so far."""
        chosen = choose(self._space, self._trials).configuration
        return Calibrated(chosen, self._trials, self._kind, self._clock() - self._begin)

    def _loaded_and_tried(self, configuration: Configuration) -> Trial:
        stage = self._factory(configuration)
        try:
            return self._tried(configuration, stage)
        finally:
            stage.close()

    def _confirmed(self, earlier: Trial) -> Trial:
        """Measured again; of both times the lower count."""
        assert earlier.curve is not None, "only what was measured is in doubt"
        stage = self._factory(earlier.configuration)
        try:
            curve = measure(stage, self._clock, deadline_s=self._deadline).curve
        finally:
            stage.close()
        return replace(earlier, curve=lower(earlier.curve, curve), is_confirmed=True)

    def _tried(self, configuration: Configuration, stage: Stage) -> Trial:
        inputs = calibration_input(self._folder, stage.shape)
        self._kind = inputs.kind
        is_reference = configuration == self._space.reference
        if is_reference:
            self._meet_reference(joined(outputs(stage, inputs), len(inputs.values)), inputs.kind)
        best = choose(self._space, self._trials)
        rival = None if best.refused else best.curve
        timing = measure(
            stage,
            self._clock,
            is_hopeless=lambda curve: _is_hopeless(curve, rival),
            deadline_s=self._deadline,
        )
        trial = Trial(configuration, timing.curve, timing.is_complete)
        if not timing.is_complete or not self._is_worth_judging(trial, rival):
            return trial
        self_test(stage)
        if is_reference and self._reference is not None:
            return self._judged(trial, parts_of(self._reference), inputs.kind)
        if self._space.reference is None:
            return trial
        return self._compared(trial, stage, inputs)

    def _is_worth_judging(self, trial: Trial, rival: StepCurve | None) -> bool:
        assert trial.curve is not None
        is_start = trial.configuration == self._space.start
        is_elsewhere = trial.configuration.precision != self._space.start.precision
        return is_start or is_elsewhere or is_contender(trial.curve, rival)

    def _compared(self, trial: Trial, stage: Stage, inputs: CalibrationInput) -> Trial:
        own = outputs(stage, inputs)
        if self._reference is not None:
            return self._judged(trial, own, inputs.kind)
        if trial.configuration == self._space.start:
            self._waiting = joined(own, len(inputs.values))
        # Unjudged, and so not to be taken, where the reference could not be computed.
        return trial

    def _meet_reference(self, output: NDArray[Any], kind: InputKind) -> None:
        self._reference = output
        if self._waiting is not None:
            parts = parts_of(self._waiting)
            self._trials = tuple(
                self._judged(trial, parts, kind)
                if trial.configuration == self._space.start
                else trial
                for trial in self._trials
            )
            self._waiting = None

    def _judged(self, trial: Trial, own: Iterable[NDArray[Any]], kind: InputKind) -> Trial:
        assert self._reference is not None
        accuracy = compare(self._reference, own)
        return replace(trial, accuracy=accuracy, refused=refusal(accuracy, kind))


def _is_hopeless(curve: StepCurve, rival: StepCurve | None) -> bool:
    return rival is not None and relative_time(curve, rival) > HOPELESS
