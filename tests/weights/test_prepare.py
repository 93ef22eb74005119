"""Sources of every kind become model folders; what goes wrong leaves the others as they were."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from importlib.util import find_spec
from pathlib import Path

import pytest

from meshinfer.core.ids import ModelId
from meshinfer.errors import (
    MeshInferError,
    ModelNotFound,
    ShardCorrupt,
    StageFailed,
    UsageError,
)
from meshinfer.weights.folder import find_folder, list_folders, open_folder, verify_folder
from meshinfer.weights.hub import Hub
from meshinfer.weights.lock import FileLock
from meshinfer.weights.obtain import catalogue_source
from meshinfer.weights.prepare import AS_IT_IS, prepare
from meshinfer.weights.progress import Progress, untold
from meshinfer.weights.recipe import Recipe, WeightFormat
from meshinfer.weights.source import HubSource, LocalSource
from tests.weights.conftest import SaveTiny
from tests.weights.gguf_models import make_gguf
from tests.weights.gguf_writer import LLAMA, gguf_bytes
from tests.weights.hub_server import COMMIT, Repository, serving
from tests.weights.ir_folder import make_ir_folder
from tests.weights.model_folder import make_model_folder
from tests.weights.small_disk import run_on_small_disk

pytestmark = [pytest.mark.openvino, pytest.mark.slow]

ODD = "Zoë Łukasz 山田/My Models (v2) #1 & co"
"""W03."""


@pytest.fixture(scope="module")
def ir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_ir_folder(tmp_path_factory.mktemp("ir") / "Tiny-int4-ov")


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    (tmp_path / ODD).mkdir(parents=True)
    path = tmp_path / ODD / "Tiny (山田).gguf"
    make_gguf(path)
    return path


def _visible(root: Path) -> set[str]:
    """All that is there, except locks: an empty file stays so that two never hold two."""
    return {path.name for path in root.iterdir() if not path.name.endswith(".lock")}


def test_a_gguf_below_an_odd_folder(tmp_path: Path, gguf: Path) -> None:
    models = tmp_path / ODD / "state" / "models"
    told: list[Progress] = []
    made = prepare(LocalSource(gguf), models, AS_IT_IS, told.append)
    assert made.model == "tiny"
    assert _visible(models) == {"tiny"}
    verify_folder(made)
    assert find_folder(models, ModelId("tiny")) == open_folder(made.path) == made
    known = made.description
    assert (known.recipe, known.source) == ("original", f"local {gguf}")
    assert known.created > 0
    assert [one.phase for one in told][-2:] == ["try the template", "describe"]
    assert gguf.is_file()


def test_what_is_there_is_not_made_again(tmp_path: Path, gguf: Path) -> None:
    made = prepare(LocalSource(gguf), tmp_path / "m", AS_IT_IS, untold)
    for recipe in (None, AS_IT_IS):
        told: list[Progress] = []
        assert prepare(LocalSource(gguf), tmp_path / "m", recipe, told.append) == made
        assert told == []


def test_another_recipe_takes_the_place_of_the_old(tmp_path: Path, gguf: Path) -> None:
    old = prepare(LocalSource(gguf), tmp_path / "m", AS_IT_IS, untold)
    recipe = Recipe(WeightFormat.INT8)
    new = prepare(LocalSource(gguf), tmp_path / "m", recipe, untold)
    assert new.path == old.path
    assert new.shape.digest != old.shape.digest
    assert (new.description.recipe, new.description.weights) != ("original", "original")
    assert _visible(tmp_path / "m") == {"tiny"}
    verify_folder(new)


def test_a_source_that_was_changed_is_made_again(tmp_path: Path, gguf: Path) -> None:
    old = prepare(LocalSource(gguf), tmp_path / "m", AS_IT_IS, untold)
    make_gguf(gguf, layers=2)
    later = old.created + 100
    os.utime(gguf, (later, later))
    assert prepare(LocalSource(gguf), tmp_path / "m", AS_IT_IS, untold).shape.layers == 2


def test_two_sources_do_not_share_a_name(tmp_path: Path, gguf: Path, ir: Path) -> None:
    made = prepare(LocalSource(gguf), tmp_path / "m", AS_IT_IS, untold)
    with pytest.raises(UsageError, match=r"came from another source \(local .*--name"):
        prepare(LocalSource(ir), tmp_path / "m", None, untold, ModelId("tiny"))
    other = prepare(LocalSource(ir), tmp_path / "m", None, untold, ModelId("other"))
    assert [one.model for one in list_folders(tmp_path / "m")] == ["other", "tiny"]
    assert other.model == "other"
    verify_folder(made)


def test_an_ir_of_the_hub(tmp_path: Path, ir: Path) -> None:
    files = {path.name: path.read_bytes() for path in ir.iterdir()}
    large = frozenset(name for name in files if name.endswith(".bin"))
    with serving({"OpenVINO/Tiny-int4-ov": Repository(files, large)}) as server:
        hub = Hub(server.endpoint, tmp_path / "cache", offline=False, token="")
        source = HubSource("OpenVINO/Tiny-int4-ov")
        made = prepare(source, tmp_path / "m", None, untold, hub=hub)
        heard = len(server.heard)
        with pytest.raises(UsageError, match="kept as it is.*Leave --format off"):
            prepare(source, tmp_path / "m", Recipe(), untold, hub=hub)
        assert prepare(source, tmp_path / "m", AS_IT_IS, untold, hub=hub) == made
        assert not [one for one in server.heard[heard:] if "/resolve/" in one.path]
    known = made.description
    assert made.model == "tiny-int4-ov"
    assert (known.source, known.revision) == ("hub OpenVINO/Tiny-int4-ov", COMMIT)
    assert known.stop_tokens == (0, 1)
    assert (known.bos, known.shape.context_length) == (0, 512)
    assert _visible(tmp_path / "m") == {"tiny-int4-ov"}
    verify_folder(made)


def test_a_form_of_weights_for_an_ir_is_refused_before_a_byte_is_fetched(
    tmp_path: Path, ir: Path
) -> None:
    files = {path.name: path.read_bytes() for path in ir.iterdir()}
    with serving({"o/m": Repository(files)}) as server:
        hub = Hub(server.endpoint, tmp_path / "cache", offline=False, token="")
        with pytest.raises(UsageError, match="kept as it is"):
            prepare(HubSource("o/m"), tmp_path / "m", Recipe(), untold, hub=hub)
        assert server.sent == 0
    assert _visible(tmp_path / "m") == set()


@pytest.mark.skipif(find_spec("torch") is not None, reason="the extra `export` is installed")
def test_a_missing_extra_is_told_before_a_byte_is_fetched(tmp_path: Path) -> None:
    repository = Repository({"model.safetensors": b"x", "config.json": b"{}"})
    with serving({"o/m": repository}) as server:
        hub = Hub(server.endpoint, tmp_path / "cache", offline=False, token="")
        with pytest.raises(UsageError, match=r"needs torch.*meshinfer-fleet\[export\]"):
            prepare(HubSource("o/m"), tmp_path / "m", None, untold, hub=hub)
        assert server.sent == 0


def test_a_folder_of_the_same_name_that_holds_another_model(
    tmp_path: Path, save_tiny: SaveTiny
) -> None:
    made = make_model_folder(tmp_path, save_tiny())
    made.path.rename(tmp_path / "smollm2-135m")
    with pytest.raises(ModelNotFound, match="holds tiny, not smollm2-135m"):
        prepare(catalogue_source("smollm2-135m"), tmp_path, None, untold)
    assert open_folder(tmp_path / "smollm2-135m").model == "tiny"


@pytest.mark.parametrize("name", ["../x", "a/b", "CON", ""])
def test_names_that_leave_the_folder_are_refused(tmp_path: Path, gguf: Path, name: str) -> None:
    """S05."""
    with pytest.raises(ModelNotFound, match="no name of a model"):
        prepare(LocalSource(gguf), tmp_path / "m", None, untold, ModelId(name or "\0"))
    assert not (tmp_path / "m").exists()


def _rwkv(folder: Path) -> None:
    (folder / "t.gguf").write_bytes(gguf_bytes({**LLAMA, "general.architecture": "rwkv"}))


def _half_a_gguf(folder: Path) -> None:
    make_gguf(folder / "t.gguf")
    data = (folder / "t.gguf").read_bytes()
    (folder / "t.gguf").write_bytes(data[: len(data) // 2])


def _an_explosion(folder: Path) -> None:
    make_gguf(folder / "t.gguf", tokenizer__chat_template="{{ 'a' * 3000000 }}")


def _an_attack(folder: Path) -> None:
    template = "{{ ().__class__.__mro__[1].__subclasses__() }}"
    make_gguf(folder / "t.gguf", tokenizer__chat_template=template)


def _only_pickles(folder: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(b"x")


def _half_a_checkpoint(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"x" * 100)
    (folder / "config.json").write_text("{}")


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (_rwkv, StageFailed, "rwkv"),
        (_half_a_gguf, ShardCorrupt, "cut short|beyond"),
        (_an_explosion, StageFailed, "makes 3000000 characters"),
        (_an_attack, StageFailed, "Python's internals"),
        (_only_pickles, ModelNotFound, "pickle"),
        (_half_a_checkpoint, ShardCorrupt, r"model\.safetensors is damaged"),
    ],
)
def test_a_bad_input_leaves_the_models_as_they_were(
    tmp_path: Path, gguf: Path, make: object, error: type[MeshInferError], words: str
) -> None:
    """The model that has the name already stays, whole."""
    models = tmp_path / "m"
    folder = tmp_path / "t"
    folder.mkdir()
    shutil.copyfile(gguf, folder / "t.gguf")
    good = prepare(LocalSource(folder), models, AS_IT_IS, untold)
    (folder / "t.gguf").unlink()
    assert callable(make)
    make(folder)
    os.utime(next(folder.iterdir()), (good.created + 100, good.created + 100))
    with pytest.raises(error, match=words):
        prepare(LocalSource(folder), models, None, untold)
    assert _visible(models) == {"t"}
    verify_folder(open_folder(good.path))
    assert open_folder(good.path) == good


def test_two_at_once_make_it_once_and_both_have_it(tmp_path: Path, gguf: Path) -> None:
    models = tmp_path / "m"
    models.mkdir()
    holder = FileLock(models / ".tiny.lock")
    assert holder.try_acquire()
    waits = threading.Event()
    told: list[Progress] = []
    found: list[object] = []

    def tell(progress: Progress) -> None:
        told.append(progress)
        waits.set()

    second = threading.Thread(
        target=lambda: found.append(prepare(LocalSource(gguf), models, AS_IT_IS, tell))
    )
    second.start()
    try:
        assert waits.wait(20)
    finally:
        holder.release()
        second.join(60)
    assert told[0] == Progress("wait for another pull", 0, 0)
    assert found == [prepare(LocalSource(gguf), models, AS_IT_IS, untold)]


KILLED = """
    import os, signal, sys
    from pathlib import Path
    from meshinfer.weights.prepare import AS_IT_IS, prepare
    from meshinfer.weights.source import LocalSource

    def tell(progress):
        print(progress.phase, flush=True)
        if progress.phase == sys.argv[3]:
            os.kill(os.getpid(), signal.SIGKILL)

    prepare(LocalSource(Path(sys.argv[1])), Path(sys.argv[2]), AS_IT_IS, tell)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="has no SIGKILL")
@pytest.mark.parametrize("phase", ["convert", "try the template", "describe"])
def test_a_kill_at_any_stage_leaves_what_the_next_call_goes_on_with(
    tmp_path: Path, gguf: Path, phase: str
) -> None:
    models = tmp_path / "m"
    command = [sys.executable, "-c", textwrap.dedent(KILLED), str(gguf), str(models), phase]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert list_folders(models) == ()
    assert _visible(models) == {".tiny.work"}
    made = prepare(LocalSource(gguf), models, AS_IT_IS, untold)
    verify_folder(made)
    assert _visible(models) == {"tiny"}


def test_work_on_another_form_is_not_gone_on_with(tmp_path: Path, gguf: Path) -> None:
    models = tmp_path / "m"
    left = models / ".tiny.work" / "model"
    left.mkdir(parents=True)
    (left / "openvino_model.xml").write_text("of another recipe")
    (left / "left.txt").write_text("x")
    (models / ".tiny.work" / "key.json").write_text("{}")
    made = prepare(LocalSource(gguf), models, AS_IT_IS, untold)
    assert "left.txt" not in {path.name for path in made.path.iterdir()}


def test_a_kill_between_two_renames_is_mended(tmp_path: Path, gguf: Path) -> None:
    made = prepare(LocalSource(gguf), tmp_path / "m", AS_IT_IS, untold)
    made.path.rename(made.path.with_name(".tiny.old"))
    told: list[Progress] = []
    assert prepare(LocalSource(gguf), tmp_path / "m", None, told.append) == made
    assert told == []


FULL = """
    from pathlib import Path
    from meshinfer.errors import DiskFull
    from meshinfer.weights.prepare import AS_IT_IS, prepare
    from meshinfer.weights import disk
    from meshinfer.weights.source import LocalSource

    disk.MARGIN_BYTES = -(1 << 40)  # so that what runs out is the disk, not the first check
    models = Path({models!r})
    try:
        prepare(LocalSource(Path({source!r})), models, AS_IT_IS, lambda progress: None)
    except DiskFull as error:
        print("full:", error)
    print(sorted(path.name for path in models.iterdir()))
"""


@pytest.mark.parametrize("size", ["4k", "40k", "100k", "200k"])
@pytest.mark.parametrize("kind", ["gguf", "ir"])
def test_a_disk_that_fills_up_at_any_stage(
    tmp_path: Path, gguf: Path, ir: Path, size: str, kind: str
) -> None:
    """D06: nothing half-made has a final name, and what was begun takes no room."""
    source = gguf if kind == "gguf" else ir
    disk = tmp_path / "disk"
    script = textwrap.dedent(FULL).format(models=str(disk / "m"), source=str(source))
    said = run_on_small_disk(disk, size, script)
    assert "full:" in said
    assert "tiny" not in said.rsplit("[", 1)[1].replace(".tiny", "")


def test_an_unknown_model_of_the_catalogue() -> None:
    with pytest.raises(ModelNotFound, match="Choose one of"):
        catalogue_source("../x")
