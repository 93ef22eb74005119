from __future__ import annotations

import hashlib
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from meshinfer.core.ids import Digest
from meshinfer.core.model import PIECE_BYTES
from meshinfer.errors import DiskFull, ShardCorrupt
from meshinfer.weights.store import PieceLocation, Store, StoreLimits
from tests.weights.small_disk import run_on_small_disk
from tests.weights.stage_maker import flip, make_files, old_manifest, pieces_of, publish


def _bytes(place: PieceLocation | None) -> bytes:
    assert place is not None
    with place.path.open("rb") as file:
        file.seek(place.offset)
        return file.read(place.length)


def _digest(data: bytes) -> Digest:
    return Digest(hashlib.sha256(data).hexdigest())


def test_a_published_stage_is_found_by_digest_and_by_what_it_was_cut_from(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    manifest, content = publish(store)
    folder = store.stage_folder(manifest.digest)
    assert folder is not None
    assert {name: (folder / name).read_bytes() for name in content} == content
    assert store.manifest(manifest.digest) == manifest
    assert store.find(manifest.model_digest, manifest.units, "2026.4.1") == manifest
    assert store.find(manifest.model_digest, manifest.units, "2026.5.0") is None
    assert store.verify_stage(manifest.digest) == folder


def test_an_empty_store_has_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path / "nowhere")
    assert store.piece(Digest("a" * 64)) is None
    assert store.stage_folder(Digest("a" * 64)) is None
    assert store.verified_folder(Digest("a" * 64)) is None
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("digest", ["..", "../stages", "", "/etc", "A" * 64, "a" * 63 + "/"])
def test_what_is_no_digest_is_never_a_path(tmp_path: Path, digest: str) -> None:
    store = Store(tmp_path)
    publish(store)
    assert store.stage_folder(Digest(digest)) is None
    assert store.piece(Digest(digest)) is None
    assert store.manifest(Digest(digest)) is None


def test_every_piece_is_served(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for seed in (0, 1):
        _, content = publish(store, seed=seed)
        for data in pieces_of(content):
            assert _bytes(store.piece(_digest(data))) == data


def test_what_another_process_published_is_found(tmp_path: Path) -> None:
    mine, theirs = Store(tmp_path), Store(tmp_path)
    publish(mine, seed=0)
    assert mine.piece(Digest("a" * 64)) is None  # the index is made
    _, content = publish(theirs, seed=1)
    assert _bytes(mine.piece(_digest(pieces_of(content)[0]))) == pieces_of(content)[0]


def test_pieces_of_a_partial_stage_are_served_until_it_is_gone(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    manifest, content = make_files(tmp_path / "origin")
    data = pieces_of(content)[1]
    with store.partial(manifest) as partial:
        assert store.piece(_digest(data)) is None
        partial.write(_digest(data), data)
        assert _bytes(store.piece(_digest(data))) == data


def test_pieces_are_served_on_after_the_stage_is_published(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    manifest, content = make_files(tmp_path / "origin")
    with store.partial(manifest) as partial:
        for data in pieces_of(content):
            partial.write(_digest(data), data)
        partial.publish()
    for data in pieces_of(content):
        assert _bytes(store.piece(_digest(data))) == data


@pytest.mark.parametrize("offset", [0, PIECE_BYTES + 5, 2 * PIECE_BYTES + 999])
def test_an_altered_stage_is_found_and_lacks_only_what_was_altered(
    tmp_path: Path, offset: int
) -> None:
    store = Store(tmp_path)
    manifest, content = publish(store)
    flip(tmp_path / "stages" / manifest.digest / "openvino_model.bin", offset)
    with pytest.raises(ShardCorrupt, match="altered on the disk"):
        store.verify_stage(manifest.digest)
    assert store.stage_folder(manifest.digest) is None
    damaged = content["openvino_model.bin"][offset // PIECE_BYTES * PIECE_BYTES :][:PIECE_BYTES]
    with store.partial(manifest) as partial:
        assert partial.missing == (_digest(damaged),)
        partial.write(_digest(damaged), damaged)
        partial.publish()
    assert store.verified_folder(manifest.digest) is not None


def test_a_file_that_is_gone_longer_or_shorter_is_an_alteration(tmp_path: Path) -> None:
    store = Store(tmp_path)
    manifest, _ = publish(store)
    folder = tmp_path / "stages" / manifest.digest
    (folder / "openvino_model.xml").unlink()
    assert store.verified_folder(manifest.digest) is None
    manifest, _ = publish(store, seed=1)
    with (tmp_path / "stages" / manifest.digest / "openvino_model.bin").open("ab") as file:
        file.write(b"more")
    assert store.verified_folder(manifest.digest) is None
    manifest, _ = publish(store, seed=2)
    os.truncate(tmp_path / "stages" / manifest.digest / "openvino_model.bin", PIECE_BYTES)
    assert store.verified_folder(manifest.digest) is None


def test_a_stage_with_an_altered_manifest_is_taken_away(tmp_path: Path) -> None:
    store = Store(tmp_path)
    manifest, _ = publish(store)
    (tmp_path / "stages" / manifest.digest / "manifest.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ShardCorrupt):
        store.verify_stage(manifest.digest)
    assert store.stage_folder(manifest.digest) is None
    assert list((tmp_path / "scratch").iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights on Windows")
def test_a_link_in_a_stage_is_neither_served_nor_loaded(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    manifest, content = publish(store)
    file = tmp_path / "store" / "stages" / manifest.digest / "openvino_model.bin"
    file.rename(tmp_path / "outside")
    file.symlink_to(tmp_path / "outside")
    assert store.piece(_digest(pieces_of(content)[1])) is None
    assert store.verified_folder(manifest.digest) is None


def test_files_that_changed_while_they_were_stored_are_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.scratch() as scratch:
        manifest, _ = make_files(scratch)
        flip(scratch / "openvino_model.bin", 0)
        with pytest.raises(ShardCorrupt, match="changed while"):
            store.publish(scratch, manifest)
    assert store.stage_folder(manifest.digest) is None


def test_a_stage_that_two_publish_is_published(tmp_path: Path) -> None:
    store = Store(tmp_path)
    first, _ = publish(store)
    second, _ = publish(store)
    assert first == second
    assert store.verified_folder(first.digest) is not None
    assert list((tmp_path / "scratch").iterdir()) == []


def test_what_a_killed_process_left_in_scratch_is_swept(tmp_path: Path) -> None:
    store = Store(tmp_path)
    left = tmp_path / "scratch" / "stage-left"
    left.mkdir(parents=True)
    (left / "openvino_model.bin").write_bytes(b"x")
    left.with_suffix(".lock").touch()
    with store.scratch() as mine, store.scratch() as other:
        assert not left.exists()
        assert mine.is_dir()  # held: not swept by the second
        assert other.is_dir()


def test_what_a_process_that_was_killed_while_removing_left_is_swept(tmp_path: Path) -> None:
    """Taken out of `stages`, not yet deleted: its lock died with its process."""
    store = Store(tmp_path)
    manifest, _ = publish(store)
    aside = tmp_path / "scratch" / "stage-0"
    aside.mkdir()
    (tmp_path / "stages" / manifest.digest).rename(aside / "stage")
    aside.with_suffix(".lock").touch()
    with store.scratch():
        assert not aside.exists()


def test_a_partial_stage_that_came_another_way_is_swept(tmp_path: Path) -> None:
    """Two agents fetched it, one was killed; or a plan was made anew and the stage cut here."""
    store = Store(tmp_path / "store")
    manifest, content = make_files(tmp_path / "origin")
    other, _ = make_files(tmp_path / "other", seed=1)
    with store.partial(manifest) as left:
        left.write(_digest(pieces_of(content)[0]), pieces_of(content)[0])
    with store.partial(other):
        pass
    publish(store)
    partials = tmp_path / "store" / "partial"
    with store.partial(other):
        assert [path.name for path in partials.iterdir() if path.is_dir()] == [other.digest]


def test_a_stage_whose_manifest_was_lost_is_stored_again(tmp_path: Path) -> None:
    store = Store(tmp_path)
    manifest, _ = publish(store)
    (tmp_path / "stages" / manifest.digest / "manifest.json").unlink()
    assert store.find(manifest.model_digest, manifest.units, manifest.openvino) is None
    publish(store)
    assert store.verified_folder(manifest.digest) is not None


@pytest.mark.skipif(os.name == "nt", reason="a folder's rights do not forbid this on Windows")
def test_nothing_is_visible_before_the_rename(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.scratch() as scratch:
        manifest, _ = make_files(scratch)
        assert store.find(manifest.model_digest, manifest.units, manifest.openvino) is None
        assert store.stage_folder(manifest.digest) is None
        store.publish(scratch, manifest)
    assert store.stage_folder(manifest.digest) is not None


def test_stages_of_an_older_format_are_never_read_and_go(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    old, partial = tmp_path / "store" / "stages" / ("b" * 64), tmp_path / "store" / "partial"
    for folder in (old, partial / ("c" * 64)):
        old_manifest(folder)
        (folder / "openvino_model.bin").write_bytes(b"old")
    manifest, content = make_files(tmp_path / "origin")
    assert store.manifest(Digest("b" * 64)) is None
    assert store.find(manifest.model_digest, manifest.units, manifest.openvino) is None
    assert store.piece(_digest(content["openvino_model.xml"])) is None
    publish(store)
    assert not old.exists()
    assert not (partial / ("c" * 64)).exists()
    assert store.verified_folder(manifest.digest) is not None


def test_an_old_stage_is_not_verified(tmp_path: Path) -> None:
    old_manifest(tmp_path / "stages" / ("b" * 64))
    assert Store(tmp_path).verified_folder(Digest("b" * 64)) is None


def test_a_stage_in_use_is_there_until_the_end_of_the_use(tmp_path: Path) -> None:
    """Two agents share a store; one may keep little."""
    store, other = Store(tmp_path), Store(tmp_path, limits=StoreLimits(4_000_000, 0))
    manifest, _ = publish(store)
    with store.in_use(manifest.digest) as folder:
        with pytest.raises(DiskFull):
            publish(other, seed=1)
        assert folder.is_dir()
    publish(other, seed=1)
    assert store.stage_folder(manifest.digest) is None
    with pytest.raises(ShardCorrupt, match="not on this PC"), store.in_use(manifest.digest):
        pass


@pytest.mark.slow
def test_two_agents_that_fetch_the_same_stage_at_once_both_have_it(tmp_path: Path) -> None:
    manifest, content = make_files(tmp_path / "origin", pieces=6)
    together = threading.Barrier(2)

    def fetch() -> Path:
        store = Store(tmp_path / "store", limits=StoreLimits(3 * manifest.size))
        together.wait()
        with store.partial(manifest) as partial:
            for data in pieces_of(content):
                partial.write(_digest(data), data)
            return partial.publish()

    with ThreadPoolExecutor(2) as threads:
        first, second = [one.result() for one in [threads.submit(fetch) for _ in range(2)]]
    assert first == second == Store(tmp_path / "store").verify_stage(manifest.digest)
    assert [one for one in (tmp_path / "store" / "partial").iterdir() if one.is_dir()] == []


def test_more_roots_are_looked_in_and_left_alone(tmp_path: Path) -> None:
    manifest, content = publish(Store(tmp_path / "media"))
    store = Store(tmp_path / "store", read_only=(tmp_path / "media",))
    folder = tmp_path / "media" / "stages" / manifest.digest
    assert store.verify_stage(manifest.digest) == store.stage_folder(manifest.digest) == folder
    assert store.find(manifest.model_digest, manifest.units, manifest.openvino) == manifest
    for data in pieces_of(content):
        assert _bytes(store.piece(_digest(data))) == data


def test_a_stage_that_was_altered_on_other_media_is_mended_in_the_store(tmp_path: Path) -> None:
    manifest, content = publish(Store(tmp_path / "media"))
    folder = tmp_path / "media" / "stages" / manifest.digest
    flip(folder / "openvino_model.bin", 7)
    store = Store(tmp_path / "store", read_only=(tmp_path / "media",))
    with pytest.raises(ShardCorrupt, match="altered"):
        store.verify_stage(manifest.digest)
    with store.partial(manifest) as partial:
        assert partial.missing == (_digest(pieces_of(content)[1]),)
        partial.write(_digest(pieces_of(content)[1]), pieces_of(content)[1])
        partial.publish()
    assert store.verify_stage(manifest.digest) == tmp_path / "store" / "stages" / manifest.digest
    assert folder.is_dir()


_READ_ONLY = """
import hashlib, subprocess
from pathlib import Path
from meshinfer.errors import DiskFull, ShardCorrupt
from meshinfer.weights.store import Store
from tests.weights.stage_maker import flip, make_files, old_manifest, pieces_of, publish

disk = Path({disk!r})
manifest, content = publish(Store(disk))
spoilt, _ = publish(Store(disk), seed=1)
flip(disk / "stages" / spoilt.digest / "openvino_model.bin", 5)
with Store(disk).partial(make_files(Path({origin!r}), seed=3)[0]):
    pass
left = disk / "partial" / manifest.digest
left.mkdir()
left.with_suffix(".lock").touch()
(disk / "scratch" / "stage-0.lock").touch()
old_manifest(disk / "stages" / ("b" * 64))
subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
store = Store(disk)
with store.in_use(manifest.digest) as folder:
    assert folder == store.verify_stage(manifest.digest)
assert store.verified_folder(spoilt.digest) is None
assert store.find(manifest.model_digest, manifest.units, manifest.openvino) == manifest
for data in pieces_of(content):
    place = store.piece(hashlib.sha256(data).hexdigest())
    assert place.path.read_bytes()[place.offset : place.offset + place.length] == data
other, _ = make_files(Path({origin!r}), seed=2)
for attempt in (lambda: store.partial(other), lambda: store.scratch().__enter__()):
    try:
        attempt()
    except DiskFull as error:
        print(error)
"""


@pytest.mark.slow
def test_a_store_that_cannot_be_written_serves_and_loads_on(tmp_path: Path) -> None:
    script = _READ_ONLY.format(disk=str(tmp_path / "disk"), origin=str(tmp_path / "origin"))
    said = run_on_small_disk(tmp_path / "disk", "200m", script)
    assert said.count("cannot be written. Choose a folder on another disk.") == 2


def test_a_stage_whose_pieces_are_not_all_here_is_not_assembled(tmp_path: Path) -> None:
    store = Store(tmp_path)
    manifest, _ = publish(store)
    assert store.assemble(manifest.digest) == store.verify_stage(manifest.digest)
    with pytest.raises(ShardCorrupt, match="not on this PC"):
        store.assemble(Digest("a" * 64))
