"""A whole calibration on toy stages whose speed and errors are scripted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from meshinfer.core.configuration import REFERENCE, Configuration, default_configuration
from meshinfer.core.model import UnitRange
from meshinfer.engine.calibration import Calibrated, Calibration
from meshinfer.engine.calibration_input import PROBE_FILE, InputKind
from meshinfer.engine.calibration_plan import MOST_TRIALS, Space, Trial, full_space
from tests.engine.scripted_device import (
    FIRST_HALF,
    SECOND_HALF,
    WHOLE,
    Behaviour,
    ScriptedDevice,
)

Script = Callable[[Configuration], Behaviour]
SPACE = full_space("f32", 0, 8, ("f32", "bf16"))
HARMLESS = {0: 0.0, 32: 0.001, 64: 0.002, 128: 0.003}
"""Noise of a group."""


def usual(configuration: Configuration) -> Behaviour:
    # Above a quarter of a second a step is measured once.
    step_s = {0: 0.6, 32: 0.33, 64: 0.31, 128: 0.3}[configuration.group]
    return Behaviour(step_s, 0.001, HARMLESS[configuration.group])


def run(
    script: Script,
    space: Space = SPACE,
    units: UnitRange = WHOLE,
    folder: Path | None = None,
    budget_s: float = 1000.0,
) -> tuple[Calibrated, ScriptedDevice]:
    device = ScriptedDevice(script, units)
    calibration = Calibration(space, device.load, folder, device.clock, budget_s)
    while (configuration := calibration.next()) is not None:
        calibration.attempt(configuration)
    result = calibration.outcome()
    assert device.is_idle
    confirmed = sum(one.is_confirmed for one in result.trials)
    assert len(device.loaded) == len(result.trials) + confirmed <= MOST_TRIALS
    assert result.took_s == pytest.approx(device.clock.now)
    return result, device


def of(result: Calibrated, text: str) -> Trial:
    return next(one for one in result.trials if str(one.configuration) == text)


@pytest.mark.parametrize("units", [WHOLE, FIRST_HALF, SECOND_HALF], ids=str)
def test_the_default_stays_where_it_is_best(units: UnitRange) -> None:
    result, _ = run(usual, units=units)
    assert str(result.chosen) == "f32/128/f32"
    start = of(result, "f32/128/f32")
    assert start.accuracy is not None
    assert 0 < start.accuracy.error < 0.05
    assert not start.refused


def test_a_faster_configuration_is_found() -> None:
    def script(configuration: Configuration) -> Behaviour:
        share = 0.7 if configuration.threads == 4 else 1.0
        return Behaviour(usual(configuration).step_s * share, 0.001)

    assert str(run(script)[0].chosen) == "f32/128/f32/4"


def test_a_start_that_was_measured_in_a_busy_time_is_measured_again() -> None:
    calls: list[int] = []

    def busy(tokens: int) -> float:
        calls.append(tokens)
        return 1.5

    def script(configuration: Configuration) -> Behaviour:
        is_first = configuration == SPACE.start and not calls
        plain = usual(configuration)
        return Behaviour(plain.step_s, 0.001, plain.error, delay=busy) if is_first else plain

    result, device = run(script)
    assert device.loaded.count(SPACE.start) == 2
    start = of(result, "f32/128/f32")
    assert start.is_confirmed
    assert start.curve is not None
    assert start.curve.decode_s(1) == pytest.approx(0.301)
    assert result.chosen == SPACE.start


def test_a_slow_candidate_is_given_up_early() -> None:
    result, _ = run(usual)
    reference = of(result, "f32/0/f32")
    assert not reference.is_complete
    assert reference.curve is not None
    assert len(reference.curve.decode) == 3


def test_a_fast_candidate_that_errs_is_refused() -> None:
    def script(configuration: Configuration) -> Behaviour:
        if configuration.group == 32:
            return Behaviour(0.26, 0.001, error=2.0)
        return usual(configuration)

    result, _ = run(script)
    assert result.chosen.group == 128
    assert "above" in of(result, "f32/32/f32").refused


def test_a_default_that_errs_gives_way_to_the_reference() -> None:
    def script(configuration: Configuration) -> Behaviour:
        error = 0.0 if configuration.group == 0 else 2.0
        return Behaviour(usual(configuration).step_s, 0.001, error)

    result, _ = run(script)
    assert result.chosen == REFERENCE
    # It was measured to its end although it is twice as slow.
    assert of(result, "f32/0/f32").is_complete


def test_what_does_not_load_is_skipped_with_its_reason() -> None:
    def script(configuration: Configuration) -> Behaviour:
        if configuration.cache == "u8":
            return Behaviour(fails="The plugin has no u8 cache.")
        return usual(configuration)

    result, _ = run(script)
    assert of(result, "f32/128/u8").refused == "The plugin has no u8 cache."
    assert str(result.chosen) == "f32/128/f32"


def test_what_fails_the_self_test_is_skipped_with_its_reason() -> None:
    def script(configuration: Configuration) -> Behaviour:
        if configuration.group == 32:
            return Behaviour(0.26, 0.001, forgets=True)
        return usual(configuration)

    result, _ = run(script)
    assert "rewind" in of(result, "f32/32/f32").refused
    assert result.chosen.group == 128


def test_without_a_reference_nothing_but_the_start_is_taken() -> None:
    def script(configuration: Configuration) -> Behaviour:
        if configuration == REFERENCE:
            return Behaviour(fails="Out of memory.")
        return Behaviour(0.3 if configuration.group == 32 else 0.6)

    assert run(script)[0].chosen == SPACE.start


def test_where_nothing_loads_the_start_is_left_to_explain() -> None:
    result, _ = run(lambda _: Behaviour(fails="No driver."))
    assert result.chosen == SPACE.start
    assert all(one.refused == "No driver." for one in result.trials)


@pytest.mark.parametrize("load_s", [1.0, 10.0, 30.0, 200.0])
def test_the_time_is_bounded(load_s: float) -> None:
    def script(configuration: Configuration) -> Behaviour:
        return Behaviour(1.0, 0.01, load_s=load_s)

    result, device = run(script, budget_s=90.0)
    assert result.trials
    # No trial begins that could go beyond it, but for the first.
    assert device.clock.now <= max(90.0, load_s + 60.0)


def test_another_precision_is_judged_but_never_taken() -> None:
    def script(configuration: Configuration) -> Behaviour:
        if configuration.precision == "bf16":
            return Behaviour(0.26, 0.0005, 0.003)
        return usual(configuration)

    result, _ = run(script)
    looked = of(result, "bf16/128/bf16")
    assert looked.is_complete
    assert looked.accuracy is not None
    assert result.chosen.precision == "f32"


def test_a_device_without_a_choice_is_only_measured() -> None:
    space = Space(default_configuration("f32"))
    result, device = run(usual, space)
    assert device.loaded == [space.start]
    assert of(result, "f32/128/f32").is_complete


def test_a_forced_one_is_judged_once_and_taken() -> None:
    forced = Configuration.parse("f32/32/u8/1")
    script: Script = lambda one: Behaviour(0.3, error=2.0 if one == forced else 0.0)  # noqa: E731
    result, device = run(script, Space(forced, REFERENCE, is_forced=True))
    assert device.loaded == [forced, REFERENCE]
    assert result.chosen == forced
    assert of(result, "f32/32/u8/1").refused


def test_the_input_is_told(tmp_path: Path) -> None:
    assert run(usual)[0].input_kind is InputKind.INVENTED
    np.save(tmp_path / PROBE_FILE, np.arange(128))
    assert run(usual, folder=tmp_path)[0].input_kind is InputKind.TEXT


def test_progress_goes_up() -> None:
    device = ScriptedDevice(usual)
    calibration = Calibration(SPACE, device.load, None, device.clock)
    seen = [calibration.progress]
    while (configuration := calibration.next()) is not None:
        calibration.attempt(configuration)
        seen.append(calibration.progress)
    assert seen[0] == 0
    assert seen == sorted(set(seen))
    assert seen[-1] <= 1
