from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from meshinfer.core.ids import Digest
from meshinfer.core.model import StageManifest
from meshinfer.errors import DiskFull, ShardCorrupt
from meshinfer.weights.manifest import build_manifest
from meshinfer.weights.store import Store, StoreLimits
from tests.weights.small_disk import run_on_small_disk
from tests.weights.stage_maker import flip, make_files, pieces_of


def _digest(data: bytes) -> Digest:
    return Digest(hashlib.sha256(data).hexdigest())


@pytest.fixture
def stage(tmp_path: Path) -> tuple[StageManifest, list[bytes]]:
    manifest, content = make_files(tmp_path / "origin")
    return manifest, pieces_of(content)


Stage = tuple[StageManifest, list[bytes]]


def test_pieces_in_any_order_become_the_stage(tmp_path: Path, stage: Stage) -> None:
    manifest, pieces = stage
    store = Store(tmp_path / "store")
    with store.partial(manifest) as partial:
        assert partial.total_bytes == manifest.size
        for data in reversed(pieces):
            assert partial.write(_digest(data), memoryview(data)) == len(data)
        assert partial.done_bytes == manifest.size
        folder = partial.publish()
    assert folder == store.verify_stage(manifest.digest)
    assert (folder / "openvino_model.bin").read_bytes() == b"".join(pieces[1:])
    assert {path.name for path in folder.iterdir()} == {
        "manifest.json",
        "openvino_model.bin",
        "openvino_model.xml",
    }


def test_a_piece_with_other_bytes_is_never_kept(tmp_path: Path, stage: Stage) -> None:
    manifest, pieces = stage
    with Store(tmp_path / "store").partial(manifest) as partial:
        wrong = bytes([pieces[1][0] ^ 1]) + pieces[1][1:]
        for data in (wrong, pieces[1][:-1], b"", pieces[1] + b"x"):
            with pytest.raises(ShardCorrupt):
                partial.write(_digest(pieces[1]), data)
        with pytest.raises(ShardCorrupt, match="does not belong here"):
            partial.write(_digest(b"other"), b"other")
        assert partial.done_bytes == 0
        assert len(partial.missing) == len(pieces)


def test_a_stage_with_holes_is_not_published(tmp_path: Path, stage: Stage) -> None:
    manifest, pieces = stage
    store = Store(tmp_path / "store")
    with store.partial(manifest) as partial:
        partial.write(_digest(pieces[0]), pieces[0])
        with pytest.raises(ShardCorrupt, match="3 pieces of the stage are not here"):
            partial.publish()
    assert store.stage_folder(manifest.digest) is None


def test_what_is_here_is_not_fetched_again(tmp_path: Path, stage: Stage) -> None:
    manifest, pieces = stage
    store = Store(tmp_path / "store")
    with store.partial(manifest) as partial:
        partial.write(_digest(pieces[2]), pieces[2])
    with store.partial(manifest) as partial:
        assert _digest(pieces[2]) not in partial.missing
        assert partial.done_bytes == len(pieces[2])
        assert partial.write(_digest(pieces[2]), pieces[2]) == 0


def test_a_journal_that_promises_too_much_is_not_believed(tmp_path: Path, stage: Stage) -> None:
    """A power cut kept the line and lost the bytes."""
    manifest, pieces = stage
    store = Store(tmp_path / "store")
    with store.partial(manifest) as partial:
        for data in pieces:
            partial.write(_digest(data), data)
    flip(tmp_path / "store" / "partial" / manifest.digest / "openvino_model.bin", 7)
    with store.partial(manifest) as partial:
        assert partial.missing == (_digest(pieces[1]),)


def test_a_journal_that_was_cut_in_a_line_counts_as_far_as_it_goes(
    tmp_path: Path, stage: Stage
) -> None:
    manifest, pieces = stage
    store = Store(tmp_path / "store")
    with store.partial(manifest) as partial:
        for data in pieces:
            partial.write(_digest(data), data)
    journal = tmp_path / "store" / "partial" / manifest.digest / "pieces.journal"
    journal.write_bytes(journal.read_bytes()[:-10])
    with Store(tmp_path / "store").partial(manifest) as partial:  # as another process
        assert len(partial.missing) == 1


@pytest.mark.slow
@pytest.mark.parametrize("kept", [0, 1, 3])
def test_a_process_that_dies_in_the_middle_loses_nothing_it_kept(
    tmp_path: Path, stage: Stage, kept: int
) -> None:
    manifest, pieces = stage
    script = (
        "import hashlib, os, sys\n"
        "from pathlib import Path\n"
        "from meshinfer.weights.store import Store\n"
        "from tests.weights.stage_maker import make_files, pieces_of\n"
        f"manifest, content = make_files(Path({str(tmp_path / 'copy')!r}))\n"
        f"partial = Store(Path({str(tmp_path / 'store')!r})).partial(manifest)\n"
        f"for data in pieces_of(content)[:{kept}]:\n"
        "    partial.write(hashlib.sha256(data).hexdigest(), data)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], check=False)
    assert done.returncode != 0
    store = Store(tmp_path / "store")
    assert store.stage_folder(manifest.digest) is None
    with store.partial(manifest) as partial:
        assert partial.missing == tuple(
            digest
            for digest in (piece for file in manifest.files for piece in file.pieces)
            if digest not in {_digest(data) for data in pieces[:kept]}
        )
        for data in pieces:
            partial.write(_digest(data), data)
        partial.publish()
    assert store.verified_folder(manifest.digest) is not None


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="Windows has no fsync of folders, so other points")
@pytest.mark.parametrize("sync", range(1, 10))
def test_a_kill_at_any_sync_loses_nothing(tmp_path: Path, stage: Stage, sync: int) -> None:
    """Every point at which something becomes durable: opening, publishing, and after the rename."""
    manifest, pieces = stage
    script = (
        "import hashlib, os\n"
        "from pathlib import Path\n"
        "real, count = os.fsync, [0]\n"
        "def fsync(descriptor):\n"
        "    count[0] += 1\n"
        f"    if count[0] == {sync}:\n"
        "        os.kill(os.getpid(), 9)\n"
        "    real(descriptor)\n"
        "os.fsync = fsync\n"
        "from meshinfer.weights.store import Store\n"
        "from tests.weights.stage_maker import make_files, pieces_of\n"
        f"manifest, content = make_files(Path({str(tmp_path / 'copy')!r}))\n"
        f"with Store(Path({str(tmp_path / 'store')!r})).partial(manifest) as partial:\n"
        "    for data in pieces_of(content):\n"
        "        partial.write(hashlib.sha256(data).hexdigest(), data)\n"
        f"    Path({str(tmp_path / 'written')!r}).touch()\n"
        "    partial.publish()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], check=False)
    store = Store(tmp_path / "store")
    if sync == 9:  # more than there are: the test covers all of them
        assert done.returncode == 0
        assert store.verified_folder(manifest.digest) is not None
        return
    assert done.returncode != 0
    if store.stage_folder(manifest.digest) is not None:
        store.verify_stage(manifest.digest)
        return
    with store.partial(manifest) as partial:
        assert bool(partial.missing) is not (tmp_path / "written").exists()
        for data in pieces:
            partial.write(_digest(data), data)
        partial.publish()
    store.verify_stage(manifest.digest)


def test_a_partial_file_that_was_cut_lacks_only_what_was_cut_off(
    tmp_path: Path, stage: Stage
) -> None:
    manifest, pieces = stage
    store = Store(tmp_path / "store")
    with store.partial(manifest) as partial:
        for data in pieces:
            partial.write(_digest(data), data)
    os.truncate(tmp_path / "store" / "partial" / manifest.digest / "openvino_model.bin", 1 << 20)
    with store.partial(manifest) as partial:
        assert partial.missing == (_digest(pieces[2]), _digest(pieces[3]))


def test_what_changed_between_writing_and_publishing_is_fetched_again(
    tmp_path: Path, stage: Stage
) -> None:
    manifest, pieces = stage
    store = Store(tmp_path / "store")
    with store.partial(manifest) as partial:
        for data in pieces:
            partial.write(_digest(data), data)
        flip(tmp_path / "store" / "partial" / manifest.digest / "openvino_model.bin", 7)
        with pytest.raises(ShardCorrupt, match="changed on the disk.*fetched again"):
            partial.publish()
    assert store.stage_folder(manifest.digest) is None
    with store.partial(manifest) as partial:
        assert partial.missing == (_digest(pieces[1]),)


def test_two_agents_fetch_the_same_stage_side_by_side(tmp_path: Path, stage: Stage) -> None:
    manifest, pieces = stage
    one, two = Store(tmp_path / "store"), Store(tmp_path / "store")
    with one.partial(manifest) as first, two.partial(manifest) as second:
        for partial in (first, second):
            for data in pieces:
                assert partial.write(_digest(data), data)
        assert first.publish() == second.publish()
    assert one.verified_folder(manifest.digest) is not None
    assert [path.suffix for path in (tmp_path / "store" / "partial").iterdir()] == [".lock"] * 2


def test_a_piece_that_occurs_twice_is_fetched_once(tmp_path: Path) -> None:
    made, content = make_files(tmp_path / "origin")
    weights = made.files[0]
    copy = replace(weights, name="copy.bin")
    manifest = build_manifest(
        made.model, made.model_digest, made.units, made.openvino, [weights, copy]
    )
    store = Store(tmp_path / "store")
    with store.partial(manifest) as partial:
        assert len(partial.missing) == len(weights.pieces)
        for data in pieces_of({"b": content[weights.name]}):
            assert partial.write(_digest(data), data) == 2 * len(data)
        assert partial.done_bytes == manifest.size
        folder = partial.publish()
    assert (folder / "copy.bin").read_bytes() == content[weights.name]


@pytest.mark.slow
def test_a_stage_that_does_not_fit_is_refused_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = make_files(tmp_path / "origin")
    count = 3000  # pieces of 1 MiB, on a disk that has room for half of them
    usage = shutil.disk_usage(tmp_path)._replace(free=1500 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    digests = made.files[0].digests[:32] * count
    huge = replace(made.files[0], segments=(count << 20,), digests=digests)
    manifest = build_manifest(made.model, made.model_digest, made.units, made.openvino, [huge])
    with pytest.raises(DiskFull, match=r"are needed in .* are free"):
        Store(tmp_path / "store").partial(manifest)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_disk_that_fills_up_is_said_and_nothing_is_published(
    tmp_path: Path, stage: Stage
) -> None:
    """D06. The kernel's own full device stands for the weights' file."""
    manifest, pieces = stage
    store = Store(tmp_path / "store")
    with store.partial(manifest) as partial:
        weights = tmp_path / "store" / "partial" / manifest.digest / "openvino_model.bin"
        weights.unlink()
        weights.symlink_to("/dev/full")
        with pytest.raises(DiskFull, match="is full"):
            partial.write(_digest(pieces[1]), pieces[1])
        assert _digest(pieces[1]) in partial.missing
    assert store.stage_folder(manifest.digest) is None


_ON_A_SMALL_DISK = """
from pathlib import Path
from meshinfer.errors import DiskFull
from meshinfer.weights.store import Store, StoreLimits
from tests.weights.stage_maker import make_files, pieces_of, publish
import hashlib, os

disk = Path({disk!r})
store = Store(disk / "store", limits=StoreLimits(None, 0))
kept, _ = publish(store, pieces=2, seed=1)
before = sorted(path for path in disk.rglob("*") if path.suffix != ".lock")
manifest, content = make_files(Path({origin!r}), pieces=5)
partial = store.partial(manifest)
with (disk / "somebody else's").open("wb") as file:
    file.truncate(0)
    os.posix_fallocate(file.fileno(), 0, 2 << 20)
try:
    for data in pieces_of(content):
        partial.write(hashlib.sha256(data).hexdigest(), data)
except DiskFull as error:
    print(error)
partial.close()
(disk / "somebody else's").unlink()
assert before == sorted(
    path
    for path in disk.rglob("*")
    if path.suffix != ".lock" and path != disk / "store" / "partial"
)
store.verify_stage(kept.digest)
with store.partial(manifest) as partial:
    for data in pieces_of(content):
        partial.write(hashlib.sha256(data).hexdigest(), data)
    partial.publish()
print("again", store.verify_stage(manifest.digest).name)
"""


@pytest.mark.slow
def test_a_real_disk_that_fills_up_while_pieces_come(tmp_path: Path, stage: Stage) -> None:
    """D06: what was written goes, what was there stays, and once there is room it works."""
    manifest, _ = make_files(tmp_path / "five", pieces=5)
    script = _ON_A_SMALL_DISK.format(disk=str(tmp_path / "disk"), origin=str(tmp_path / "five"))
    said = run_on_small_disk(tmp_path / "disk", "7m", script)
    assert "is full. Free disk space" in said
    assert f"again {manifest.digest}" in said


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="Windows has no such limit")
def test_a_file_system_that_takes_no_large_files_is_said(tmp_path: Path, stage: Stage) -> None:
    """A limit of the process stands for FAT32's 4 GB."""
    script = (
        "import resource\n"
        "from pathlib import Path\n"
        "from meshinfer.errors import DiskFull\n"
        "from meshinfer.weights.store import Store\n"
        "from tests.weights.stage_maker import make_files\n"
        f"manifest, _ = make_files(Path({str(tmp_path / 'copy')!r}))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
        "try:\n"
        f"    Store(Path({str(tmp_path / 'store')!r})).partial(manifest)\n"
        "except DiskFull as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "does not take files of this size" in done.stdout
    assert [path.suffix for path in (tmp_path / "store" / "partial").iterdir()] == [".lock"]


def test_a_quota_that_is_hit_leaves_what_an_earlier_attempt_had(
    tmp_path: Path, stage: Stage
) -> None:
    manifest, pieces = stage
    with Store(tmp_path / "store").partial(manifest) as partial:
        partial.write(_digest(pieces[1]), pieces[1])
    tight = Store(tmp_path / "store", limits=StoreLimits(manifest.size - 1))
    with pytest.raises(DiskFull, match="allow the store more"):
        tight.partial(manifest)
    with Store(tmp_path / "store").partial(manifest) as partial:
        assert _digest(pieces[1]) not in partial.missing


def test_a_quota_that_is_hit_at_first_leaves_nothing(tmp_path: Path, stage: Stage) -> None:
    manifest, _ = stage
    with pytest.raises(DiskFull):
        Store(tmp_path / "store", limits=StoreLimits(1000)).partial(manifest)
    assert [path.suffix for path in (tmp_path / "store" / "partial").iterdir()] == [".lock"]
