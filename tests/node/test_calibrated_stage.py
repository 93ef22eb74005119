"""Stages are loaded on OpenVINO as they were calibrated, forced or left alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from meshinfer.core.calibration_report import CalibrationReport
from meshinfer.core.model import UnitRange
from meshinfer.core.step import Row, Step
from meshinfer.engine.paged import StageOptions
from meshinfer.engine.thread import EngineThread
from meshinfer.errors import StageFailed, UsageError
from meshinfer.node.calibrated_stage import LoadedStage, StageOrder, load_calibrated
from meshinfer.weights.cut import cut
from meshinfer.wire.commit import StagePhase
from tests.weights.tiny import tiny_model

pytestmark = [pytest.mark.openvino, pytest.mark.slow]


@pytest.fixture(scope="module")
def xml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import openvino as ov

    folder = tmp_path_factory.mktemp("stages") / ("d" * 64)
    folder.mkdir()
    ov.save_model(tiny_model(layers=1), folder / "openvino_model.xml", compress_to_fp16=False)
    return folder / "openvino_model.xml"


@pytest.fixture
async def engine() -> AsyncIterator[EngineThread]:
    thread = EngineThread()
    yield thread
    await thread.close()


class Listener:
    """What the agent hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[StagePhase, float]] = []

    def __call__(self, phase: StagePhase, progress: float) -> None:
        self.heard.append((phase, progress))


def order(xml: Path, records: Path, choice: str, **options: object) -> StageOrder:
    plain = StageOptions(threads=1, cache_tokens=512)
    return StageOrder(xml, replace(plain, **options), choice, records)


async def closed(engine: EngineThread, loaded: LoadedStage) -> CalibrationReport:
    """The report, after a step that shows that the stage works and has an empty cache."""
    logits = await engine.run(loaded.stage.forward, Step(0, (Row(1, 0, 3, 1),), (1, 2, 3)), None)
    assert np.isfinite(logits).all()
    await engine.run(loaded.stage.close)
    return loaded.report


async def test_a_calibration_is_made_once(xml: Path, tmp_path: Path, engine: EngineThread) -> None:
    listener = Listener()
    first = await load_calibrated(engine, order(xml, tmp_path, "auto"), listener)
    report = await closed(engine, first)
    assert report.source == "auto"
    assert report.configuration.startswith("f32/")
    assert report.accuracy
    assert len(report.curve.decode) >= 3
    assert len(report.notes) >= 3
    phases = [phase for phase, _ in listener.heard]
    assert phases[0] is StagePhase.LOADING
    assert phases.count(StagePhase.TESTING) >= 5
    progress = [share for phase, share in listener.heard if phase is StagePhase.TESTING]
    assert progress == sorted(progress)

    listener = Listener()
    again = await load_calibrated(engine, order(xml, tmp_path, "auto"), listener)
    assert await closed(engine, again) == report
    assert len(listener.heard) == 3  # loading and two tests: nothing was measured


async def test_by_default_nothing_is_tried_and_nothing_kept(
    xml: Path, tmp_path: Path, engine: EngineThread
) -> None:
    loaded = await load_calibrated(engine, order(xml, tmp_path, "default"), Listener())
    report = await closed(engine, loaded)
    assert (report.configuration, report.source) == ("f32/128/f32/1", "default")
    assert [rows for rows, _ in report.curve.decode] == [1, 4]  # 16 do not fit beside 64 tokens
    assert not list(tmp_path.iterdir())


async def test_deterministic_mode_has_no_choice(
    xml: Path, tmp_path: Path, engine: EngineThread
) -> None:
    wanted = order(xml, tmp_path, "f32/128/u8", deterministic=True)
    report = await closed(engine, await load_calibrated(engine, wanted, Listener()))
    assert (report.configuration, report.source) == ("f32/0/f32/1", "deterministic")


async def test_a_forced_configuration_is_the_one_that_runs(
    xml: Path, tmp_path: Path, engine: EngineThread
) -> None:
    loaded = await load_calibrated(engine, order(xml, tmp_path, "f32/32/u8"), Listener())
    report = await closed(engine, loaded)
    assert (report.configuration, report.source) == ("f32/32/u8/1", "forced")
    assert report.accuracy


@pytest.mark.parametrize(
    ("choice", "precision", "error", "match"),
    [
        ("fast", "f32", UsageError, "no configuration"),
        ("bf16/128/bf16", "f32", StageFailed, "plan's stages talk"),
        ("bf16/128/f32", "bf16", StageFailed, "twice the cache"),
    ],
)
async def test_what_cannot_be_forced_is_said(
    xml: Path,
    tmp_path: Path,
    engine: EngineThread,
    choice: str,
    precision: str,
    error: type[Exception],
    match: str,
) -> None:
    wanted = order(xml, tmp_path, choice, precision=precision)
    with pytest.raises(error, match=match):
        await load_calibrated(engine, wanted, Listener())


async def test_a_stage_that_loads_nowhere_says_why(tmp_path: Path, engine: EngineThread) -> None:
    wanted = order(tmp_path / "d" / "openvino_model.xml", tmp_path, "auto")
    with pytest.raises(StageFailed, match="Reading the stage's files"):
        await load_calibrated(engine, wanted, Listener())
    assert not list(tmp_path.glob("*.json"))


async def test_a_cancelled_calibration_ends_after_its_trial(
    xml: Path, tmp_path: Path, engine: EngineThread
) -> None:
    begun = asyncio.Event()

    def tell(phase: StagePhase, progress: float) -> None:
        if phase is StagePhase.TESTING:
            begun.set()

    task = asyncio.create_task(load_calibrated(engine, order(xml, tmp_path, "auto"), tell))
    await asyncio.wait_for(begun.wait(), 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await engine.close()  # waits for the trial that runs, and no other one begins
    assert not list(tmp_path.iterdir())


async def test_two_layers_of_a_real_model(
    smollm2: Path, tmp_path: Path, engine: EngineThread
) -> None:
    """SmolLM2's embedding and first two layers: int8 weights, so that groups matter."""
    import openvino as ov

    folder = tmp_path / ("e" * 64)
    folder.mkdir()
    stage = cut(smollm2 / "openvino_model.xml", UnitRange(0, 5))
    ov.save_model(stage, folder / "openvino_model.xml", compress_to_fp16=False)
    del stage
    wanted = order(folder / "openvino_model.xml", tmp_path / "records", "auto", cache_tokens=2048)
    loaded = await load_calibrated(engine, wanted, Listener())
    report = loaded.report
    await engine.run(loaded.stage.close)
    assert report.curve.decode_s(32) > report.curve.decode_s(1)
    assert report.curve.prefill_s(256) > report.curve.prefill_s(16)
    assert report.accuracy.startswith("differs by")
    assert not any("refused" in note for note in report.notes[:2])
