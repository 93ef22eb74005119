"""Compiled stages are kept, found again, and made anew when they are no good."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import openvino as ov
import pytest

from meshinfer.core.model import UnitRange
from meshinfer.core.step import Row, Step
from meshinfer.engine.compiled_cache import (
    MOST_KEPT,
    CompiledCache,
    compile_model,
    is_loaded,
    worth_keeping,
)
from meshinfer.engine.configuration import StageOptions
from meshinfer.engine.paged import PagedStage
from meshinfer.weights.cut import cut
from tests.weights.tiny import tiny_model

STAGE = "a" * 64


class Gpu:
    """A GPU plugin as far as the cache sees it: keeps a blob in CACHE_DIR, throws at one that
    another driver made (openvino PR 36744), and at a full disk."""

    def __init__(self, driver: str = "1", *, full: bool = False, broken: bool = False) -> None:
        self.driver = driver
        self.full = full
        self.broken = broken
        self.compiled = 0

    def get_property(self, device_name: str, property: str) -> Any:
        if property == "DRIVER_VERSION":
            return self.driver
        if property == "FULL_DEVICE_NAME":
            return "Arc"
        raise RuntimeError(f"Unsupported property {property}")

    def compile_model(self, model: Any, device_name: str, config: Mapping[str, Any]) -> str:
        assert device_name == "GPU.0"
        folder = Path(config["CACHE_DIR"]) if "CACHE_DIR" in config else None
        blob = folder / "1.blob" if folder else None
        if blob is not None and blob.exists():
            if blob.read_text() != "good":
                raise RuntimeError("Blob is not compatible with the device")
            return "loaded"
        self.compiled += 1
        if self.broken:
            raise RuntimeError("ProgramBuilder build failed")
        if folder is not None and blob is not None:
            if self.full:
                raise RuntimeError("No space left on device")
            folder.mkdir(exist_ok=True)
            blob.write_text("good")
        return "compiled"


def ask(core: Gpu, root: Path, stage: str = STAGE, **properties: str) -> str:
    cache = CompiledCache(root, stage)
    result = compile_model(core, object(), "GPU.0", properties, cache, stage_bytes=1)
    return str(result)


def blobs(root: Path) -> list[Path]:
    return sorted(root.glob("*/*.blob"))


def test_the_second_start_loads(tmp_path: Path) -> None:
    core = Gpu()
    assert [ask(core, tmp_path) for _ in range(3)] == ["compiled", "loaded", "loaded"]
    assert core.compiled == 1


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"hint": "f32"}, {"hint": "bf16"}),
        ({}, {"hint": "f32"}),
    ],
)
def test_other_options_are_another_blob(
    tmp_path: Path, first: dict[str, str], second: dict[str, str]
) -> None:
    core = Gpu()
    assert ask(core, tmp_path, **first) == "compiled"
    assert ask(core, tmp_path, **second) == "compiled"


def test_a_new_driver_compiles_anew_and_the_old_blob_goes(tmp_path: Path) -> None:
    assert ask(Gpu("1"), tmp_path) == "compiled"
    assert ask(Gpu("2"), tmp_path) == "compiled"
    assert len(blobs(tmp_path)) == 1
    assert ask(Gpu("2"), tmp_path) == "loaded"


def test_a_bad_blob_is_deleted_and_compiled_once(tmp_path: Path) -> None:
    core = Gpu()
    ask(core, tmp_path)
    blobs(tmp_path)[0].write_text("rubbish")
    assert ask(core, tmp_path) == "compiled"
    assert core.compiled == 2
    assert ask(core, tmp_path) == "loaded"


def test_a_full_disk_only_means_a_slower_start(tmp_path: Path) -> None:
    core = Gpu(full=True)
    assert [ask(core, tmp_path), ask(core, tmp_path)] == ["compiled", "compiled"]
    assert not blobs(tmp_path)


def test_a_read_only_folder_only_means_a_slower_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert ask(Gpu(), tmp_path / "file" / "below") == "compiled"


def test_a_model_that_does_not_compile_says_why(tmp_path: Path) -> None:
    core = Gpu(broken=True)
    with pytest.raises(RuntimeError, match="ProgramBuilder"):
        ask(core, tmp_path)


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    core = Gpu()
    stages = [f"{number:x}" * 64 for number in range(MOST_KEPT + 2)]
    for number, stage in enumerate(stages):
        ask(core, tmp_path, stage)
        for folder in tmp_path.glob(f"{stage[:16]}-*"):
            os.utime(folder, (number, number))
    kept = {blob.parent.name[:16] for blob in blobs(tmp_path)}
    assert kept == {stage[:16] for stage in stages[-MOST_KEPT:]}


def test_no_space_no_blob(tmp_path: Path) -> None:
    cache = CompiledCache(tmp_path, STAGE)
    core = Gpu()
    assert compile_model(core, object(), "GPU.0", {}, cache, stage_bytes=1 << 60) == "compiled"
    assert not blobs(tmp_path)


def test_a_paged_graph_on_the_cpu_is_not_kept() -> None:
    assert not worth_keeping("CPU", is_paged=True)
    assert worth_keeping("CPU", is_paged=False)
    assert worth_keeping("GPU.0", is_paged=True)


@pytest.mark.openvino
def test_the_head_alone_loads_from_the_cache_of_the_cpu(tmp_path: Path) -> None:
    xml = tmp_path / "openvino_model.xml"
    ov.save_model(tiny_model(layers=1), xml, compress_to_fp16=False)
    head = cut(xml, UnitRange(3, 4))
    core, cache = ov.Core(), CompiledCache(tmp_path / "Zo\u00eb #1", STAGE)
    properties = {"INFERENCE_PRECISION_HINT": "f32"}
    first = compile_model(core, head, "CPU", properties, cache, 1)
    second = compile_model(core, head, "CPU", properties, cache, 1)
    assert not is_loaded(first)
    assert is_loaded(second)


@pytest.mark.openvino
def test_a_stage_with_a_spoilt_blob_still_answers_right(tmp_path: Path) -> None:
    xml = tmp_path / "openvino_model.xml"
    ov.save_model(tiny_model(layers=1), xml, compress_to_fp16=False)
    embedding = cut(xml, UnitRange(0, 1))
    root = tmp_path / "compiled"
    options = StageOptions(compiled=CompiledCache(root, STAGE), cache_tokens=64)
    step = Step(0, (Row(0, 0, 3, 0),), (1, 2, 3), ())
    answers = []
    for _ in range(3):
        stage = PagedStage.load(embedding, options)
        answers.append(stage.forward(step, None).tobytes())
        stage.close()
        for blob in blobs(root):
            data = blob.read_bytes()
            blob.write_bytes(b"\0" * len(data))
    assert len(set(answers)) == 1
    assert len(blobs(root)) == 1
