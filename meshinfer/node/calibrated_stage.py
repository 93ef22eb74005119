"""Loading a stage in the configuration that suits its device: known, measured now, or forced.

Called by the stage host. What blocks runs on the engine's thread, one trial a call, so that a
cancellation waits for one trial at most.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from meshinfer.core.calibration_report import CalibrationReport
from meshinfer.core.configuration import REFERENCE, Configuration, default_configuration
from meshinfer.core.step_curve import StepCurve
from meshinfer.engine.calibration import Calibration
from meshinfer.engine.calibration_key import (
    Subject,
    available_threads,
    calibration_key,
    this_device_facts,
)
from meshinfer.engine.calibration_plan import Space, full_space
from meshinfer.engine.calibration_record import CalibrationRecord, report
from meshinfer.engine.configuration import check_options
from meshinfer.engine.paged import PagedStage, StageOptions
from meshinfer.engine.selftest import self_test
from meshinfer.engine.step_timing import QUICK_ROWS, TRIAL_CACHE_TOKENS, Sizes, measure
from meshinfer.engine.thread import EngineThread
from meshinfer.engine.warmup import warm_up
from meshinfer.errors import MeshInferError, StageFailed
from meshinfer.node.calibration_folder import CalibrationFolder
from meshinfer.wire.commit import StagePhase

log = logging.getLogger(__name__)

AUTO, DEFAULT, DETERMINISTIC, FORCED = "auto", "default", "deterministic", "forced"

_CALIBRATED = 0.8
"""Of the phase of testing: what comes after is one load and two short tests."""

Tell = Callable[[StagePhase, float], None]


@dataclass(frozen=True, slots=True)
class StageOrder:
    """`options` as the plan has them; `choice` is "auto", "default" or a configuration in its text
    form. Deterministic options have no choice. Records are kept in `records`."""

    xml: Path
    options: StageOptions
    choice: str
    records: Path
    probe: Path | None = None  # folder of what it is judged on
    change: Callable[[Path], Any] | None = None  # the model to load instead of the file's

    @property
    def source(self) -> str:
        if self.options.deterministic:
            return DETERMINISTIC
        return self.choice if self.choice in (AUTO, DEFAULT) else FORCED


@dataclass(frozen=True, slots=True)
class LoadedStage:
    """A stage that is tested and warm, and what is known of its speed."""

    stage: PagedStage
    report: CalibrationReport


async def load_calibrated(engine: EngineThread, order: StageOrder, tell: Tell) -> LoadedStage:
    """Raises StageFailed (it cannot run here, or a forced configuration does not go with the plan)
    and UsageError (what is forced is no configuration)."""
    tell(StagePhase.LOADING, 0.0)
    if order.source in (DEFAULT, DETERMINISTIC):
        stage = await _load(engine, order, order.options, tell, 0.0)
        return LoadedStage(stage, await engine.run(_quick_report, stage, order))
    record = await _record(engine, order, tell)
    if order.source == FORCED and record.chosen.refused:
        log.warning("the forced %s is used although %s", order.choice, record.chosen.refused)
    options = order.options.configured(record.result.chosen)
    stage = await _load(engine, order, options, tell, _CALIBRATED)
    if record.chosen.curve is None:
        return LoadedStage(stage, await engine.run(_quick_report, stage, order))
    return LoadedStage(stage, report(record, order.source))


async def _load(
    engine: EngineThread, order: StageOrder, options: StageOptions, tell: Tell, done: float
) -> PagedStage:
    """Compile, test and warm up; `done` of testing is behind us. What fails leaves nothing open."""
    stage: PagedStage = await engine.run(_load_alone, order, options)
    try:
        tell(StagePhase.TESTING, done)
        await engine.run(self_test, stage)
        tell(StagePhase.TESTING, (1 + done) / 2)
        await engine.run(warm_up, stage)
    except MeshInferError:
        await engine.run(stage.close)
        raise
    return stage


def _load_alone(order: StageOrder, options: StageOptions) -> PagedStage:
    gc.collect()  # a compiled model before it may hang in a cycle; both would not fit
    return PagedStage.load(order.change(order.xml) if order.change else order.xml, options)


async def _record(engine: EngineThread, order: StageOrder, tell: Tell) -> CalibrationRecord:
    """The kept one, or a new one, which is kept."""
    space = await engine.run(_space, order)
    key = await engine.run(_key, order, space)
    folder = CalibrationFolder(order.records)
    kept = await engine.run(folder.load, key)
    if kept is not None:
        return kept
    record = await _measured(engine, order, space, tell)
    if record.chosen.curve is not None:
        await engine.run(folder.save, key, record)
    return record


async def _measured(
    engine: EngineThread, order: StageOrder, space: Space, tell: Tell
) -> CalibrationRecord:
    # A candidate gets no more cache than measuring needs: one in a wider precision than the plan's
    # stays within what the plan counted. No blob of it is kept either.
    options = replace(
        order.options,
        cache_tokens=min(order.options.cache_tokens, TRIAL_CACHE_TOKENS),
        compiled=None if space.caches else order.options.compiled,
    )

    def candidate(configuration: Configuration) -> PagedStage:
        return _load_alone(order, options.configured(configuration))

    calibration = Calibration(space, candidate, order.probe, time.perf_counter)
    while (configuration := calibration.next()) is not None:
        tell(StagePhase.TESTING, _CALIBRATED * calibration.progress)
        trial = await engine.run(calibration.attempt, configuration)
        log.info("calibration: tried %s %s", trial.configuration, trial.refused or "")
    return CalibrationRecord(calibration.outcome(), datetime.now(UTC).isoformat(timespec="seconds"))


def _key(order: StageOrder, space: Space) -> str:
    options = order.options
    subject = Subject(
        stage=order.xml.parent.name + ("-changed" if order.change else ""),
        device=options.device,
        precision=options.precision,
        threads=options.threads,
        forced=str(space.start) if order.source == FORCED else "",
    )
    return calibration_key(subject, this_device_facts(options.device), available_threads())


def _space(order: StageOrder) -> Space:
    """What may be tried on this device. Raises StageFailed, UsageError."""
    options = order.options
    if not options.device.startswith("CPU"):
        # Group, cache precision and threads are CPU properties here (engine.configuration): there
        # is nothing to choose, only a curve to measure.
        return Space(default_configuration(options.precision, options.threads))
    if order.source == FORCED:
        return _forced_space(Configuration.parse(order.choice), options)
    return full_space(options.precision, options.threads, available_threads(), _precisions(options))


def _forced_space(forced: Configuration, options: StageOptions) -> Space:
    """The forced one alone; the reference is loaded once, for the guard's opinion."""
    if forced.precision != options.precision:
        raise StageFailed(
            f"The forced configuration {forced} computes in {forced.precision}, but the plan's "
            f"stages talk to each other in {options.precision}.",
            f"Force one that begins with {options.precision}, or plan with {forced.precision}.",
        )
    if (forced.cache, options.precision) == ("f32", "bf16"):
        raise StageFailed(
            f"The forced configuration {forced} needs twice the cache that the plan counted.",
            "Force a cache of bf16 or u8.",
        )
    start = options.configured(forced).configuration
    reference = replace(REFERENCE, threads=start.threads)
    return Space(start, reference if reference != start else None, is_forced=True)


def _precisions(options: StageOptions) -> list[str]:
    offered = []
    for precision in ("f32", "bf16"):
        try:
            check_options(StageOptions(device=options.device, precision=precision))
        except StageFailed:
            continue
        offered.append(precision)
    return offered


def _quick_report(stage: PagedStage, order: StageOrder) -> CalibrationReport:
    curve: StepCurve = measure(stage, time.perf_counter, Sizes(QUICK_ROWS, ())).curve
    return CalibrationReport(str(order.options.configuration), order.source, curve)
