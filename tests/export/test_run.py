"""The whole way with real child processes: made, killed and resumed, shared by PCs, refused."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from meshinfer.errors import DiskFull, ShardCorrupt, StageFailed
from meshinfer.weights.export.run import export_checkpoint, export_ranges
from meshinfer.weights.facts import ModelFacts
from meshinfer.weights.progress import Progress, untold
from meshinfer.weights.recipe import Recipe
from tests.export.checkpoint_folder import write_checkpoint
from tests.export.exported import export_spans, logits, spans_of
from tests.export.tiny_checkpoints import make_checkpoint
from tests.weights.safetensors_writer import table_bytes

pytestmark = [pytest.mark.slow, pytest.mark.openvino, pytest.mark.processes]

RECIPE = Recipe(group_size=32)
SPAN_BYTES = 130_000  # two layers of the tiny llama
FILES = {
    f"openvino_{part}.{ending}"
    for part in ("model", "tokenizer", "detokenizer")
    for ending in ("xml", "bin")
}
SCRIPT = (
    "import sys; from pathlib import Path\n"
    "from meshinfer.weights.export.run import export_checkpoint\n"
    "from meshinfer.weights.recipe import Recipe\n"
    f"export_checkpoint(Path(sys.argv[1]), Path(sys.argv[2]), Recipe(group_size=32), "
    f"lambda progress: None, {SPAN_BYTES})\n"
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("checkpoint"), "llama")


@pytest.fixture(scope="module")
def made(
    checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, ModelFacts, list[Progress]]:
    """An export that nothing disturbed."""
    work = tmp_path_factory.mktemp("made")
    told: list[Progress] = []
    facts = export_checkpoint(checkpoint, work, RECIPE, told.append, SPAN_BYTES)
    return work, facts, told


def model_bytes(work: Path) -> bytes:
    return (work / "openvino_model.bin").read_bytes()


def test_a_checkpoint_becomes_a_model_with_its_tokenizer(
    checkpoint: Path, made: tuple[Path, ModelFacts, list[Progress]], tmp_path: Path
) -> None:
    work, facts, told = made
    assert {path.name for path in work.iterdir()} == FILES
    assert (facts.architecture, facts.context_length) == ("llama", 512)
    assert facts.weights == "int4-asym group 32"
    shares = [progress.done_bytes / progress.total_bytes for progress in told]
    assert shares[0] == 0.0
    assert shares[-1] == 1.0
    assert len(set(shares)) == 4  # nothing, and one part after another of three
    here = export_spans(checkpoint, tmp_path, RECIPE, spans_of(0, 1, 3, 5))
    assert np.array_equal(logits(work / "openvino_model.xml"), logits(here))


def wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 240
    while not path.is_file():
        assert process.poll() is None, "it ended before it was killed"
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_killed_export_goes_on_where_it_was(
    checkpoint: Path, made: tuple[Path, ModelFacts, list[Progress]], tmp_path: Path
) -> None:
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, checkpoint, tmp_path])
    wait_for(tmp_path / "parts" / "0-1.xml", process)
    (child,) = psutil.Process(process.pid).children()
    process.kill()
    process.wait()
    child.wait(timeout=60)  # it sees that its parent is gone
    shutil.rmtree(tmp_path / "scratch", ignore_errors=True)
    before = (tmp_path / "parts" / "0-1.bin").stat().st_mtime_ns
    told: list[Progress] = []

    def tell(progress: Progress) -> None:
        told.append(progress)
        assert (tmp_path / "parts" / "0-1.bin").stat().st_mtime_ns == before

    facts = export_checkpoint(checkpoint, tmp_path, RECIPE, tell, SPAN_BYTES)
    assert told[0].done_bytes > 0
    assert facts == made[1]
    assert {path.name for path in tmp_path.iterdir()} == FILES
    assert model_bytes(tmp_path) == model_bytes(made[0])


def test_parts_from_two_pcs_join_to_the_same_model(
    checkpoint: Path, made: tuple[Path, ModelFacts, list[Progress]], tmp_path: Path
) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    left = export_ranges(checkpoint, one, RECIPE, (0, 3), untold, SPAN_BYTES)
    assert [str(span) for span in left] == ["3-5"]
    there = shutil.copytree(checkpoint, tmp_path / "same checkpoint elsewhere")
    left = export_ranges(there, other, RECIPE, (3, 5), untold, SPAN_BYTES)
    assert [str(span) for span in left] == ["0-1", "1-3"]
    shutil.copytree(other / "parts", one / "parts", dirs_exist_ok=True)
    told: list[Progress] = []
    export_checkpoint(checkpoint, one, RECIPE, told.append, SPAN_BYTES)
    assert told[0].done_bytes == told[0].total_bytes  # nothing was left but the joining
    assert model_bytes(one) == model_bytes(made[0])


def test_a_file_that_is_cut_short_is_refused_at_once(checkpoint: Path, tmp_path: Path) -> None:
    damaged = shutil.copytree(checkpoint, tmp_path / "damaged")
    file = damaged / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(ShardCorrupt, match="damaged"):
        export_checkpoint(damaged, tmp_path / "work", RECIPE, untold)
    assert not (tmp_path / "work").exists()


def test_a_disk_that_is_too_small_is_found_before_anything_is_made(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "checkpoint", layers=1)
    size = 8 << 40  # bytes: more than is free anywhere, and none of them is written
    entry = {"dtype": "F16", "shape": [size // 2], "data_offsets": [0, size]}
    embedding = {"dtype": "F16", "shape": [0, 4], "data_offsets": [size, size]}
    table = {"model.layers.0.w": entry, "model.embed_tokens.weight": embedding}
    header = table_bytes(table)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(header)
        file.truncate(len(header) + size)
    with pytest.raises(DiskFull, match="are free"):
        export_checkpoint(folder, tmp_path / "work", RECIPE, untold)
    assert not (tmp_path / "work").exists()


@pytest.fixture
def killer() -> Iterator[threading.Event]:
    """Kills the first child process that this one gets, as a system without memory does."""
    done = threading.Event()

    def hunt() -> None:
        while not done.wait(0.02):
            for child in psutil.Process().children():
                child.kill()
                return

    thread = threading.Thread(target=hunt)
    thread.start()
    yield done
    done.set()
    thread.join()


@pytest.mark.usefixtures("killer")
def test_a_child_that_the_system_ends_is_an_error_here(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(StageFailed, match=r"ended unexpectedly \(signal 9\)"):
        export_checkpoint(checkpoint, tmp_path / "work", RECIPE, untold)


def test_an_architecture_that_is_not_exported_is_named(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "checkpoint", model_type="deepseek_v3")
    with pytest.raises(StageFailed, match="deepseek_v3"):
        export_checkpoint(folder, tmp_path / "work", RECIPE, untold)
