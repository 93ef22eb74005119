"""What is on this PC already is not asked of the network."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from meshinfer.core.ids import Digest
from meshinfer.core.model import PIECE_BYTES, StageManifest, UnitRange
from meshinfer.weights.manifest import build_manifest, describe_bytes
from meshinfer.weights.store import Store
from tests.weights.stage_maker import flip, make_files, pieces_of, publish


def _digest(data: bytes) -> Digest:
    return Digest(hashlib.sha256(data).hexdigest())


def overlapping(made: StageManifest, content: dict[str, bytes]) -> StageManifest:
    """Another stage: a new row of pieces, then all weights of `made`, at other places."""
    weights = content["openvino_model.bin"]
    file = describe_bytes("openvino_model.bin", b"new" + weights, [3, len(weights)])
    return build_manifest(made.model, made.model_digest, UnitRange(50, 60), made.openvino, [file])


@pytest.fixture
def made(tmp_path: Path) -> tuple[StageManifest, dict[str, bytes]]:
    return make_files(tmp_path / "origin")


Made = tuple[StageManifest, dict[str, bytes]]


def test_pieces_of_another_stage_are_taken_to_their_new_places(tmp_path: Path, made: Made) -> None:
    store = Store(tmp_path / "store")
    publish(store)
    manifest = overlapping(*made)
    told: list[tuple[int, int]] = []
    with store.partial(manifest, lambda done, total: told.append((done, total))) as partial:
        assert partial.missing == (_digest(b"new"),)
        assert partial.done_bytes == manifest.size - 3
        partial.write(_digest(b"new"), b"new")
        folder = partial.publish()
    assert (folder / "openvino_model.bin").read_bytes() == b"new" + made[1]["openvino_model.bin"]
    assert told[-1] == (manifest.size - 3, manifest.size)


def test_pieces_of_what_another_process_fetches_are_taken(tmp_path: Path, made: Made) -> None:
    """And those of an attempt that was given up."""
    manifest, content = made
    first, *_, last = pieces_of(content)
    with Store(tmp_path / "store").partial(manifest) as theirs:
        theirs.write(_digest(last), last)
        theirs.write(_digest(first), first)
        with Store(tmp_path / "store").partial(overlapping(*made)) as mine:
            assert _digest(last) not in mine.missing
            assert len(mine.missing) == 3


def test_pieces_of_a_read_only_root_are_taken(tmp_path: Path, made: Made) -> None:
    publish(Store(tmp_path / "media"))
    store = Store(tmp_path / "store", read_only=(tmp_path / "media",))
    with store.partial(overlapping(*made)) as partial:
        assert partial.missing == (_digest(b"new"),)


def test_a_piece_that_was_altered_is_left_to_the_network(tmp_path: Path, made: Made) -> None:
    store = Store(tmp_path / "store")
    manifest, content = publish(store)
    weights = tmp_path / "store" / "stages" / manifest.digest / "openvino_model.bin"
    flip(weights, PIECE_BYTES + 3)
    with store.partial(overlapping(*made)) as partial:
        altered = _digest(pieces_of(content)[2])
        assert set(partial.missing) == {_digest(b"new"), altered}
        assert partial.done_bytes == partial.total_bytes - 3 - PIECE_BYTES


def test_a_file_that_ends_early_or_is_gone_is_left_to_the_network(
    tmp_path: Path, made: Made
) -> None:
    store = Store(tmp_path / "store")
    manifest, content = publish(store)
    weights = tmp_path / "store" / "stages" / manifest.digest / "openvino_model.bin"
    with weights.open("r+b") as file:
        file.truncate(PIECE_BYTES + 3)
    with store.partial(overlapping(*made)) as partial:
        assert len(partial.missing) == 3
    shutil.rmtree(weights.parent)
    with Store(tmp_path / "store").partial(replace_units(overlapping(*made))) as partial:
        assert _digest(pieces_of(content)[1]) not in partial.missing  # the first attempt has it


def replace_units(manifest: StageManifest) -> StageManifest:
    made = replace(manifest, units=UnitRange(70, 80))
    return build_manifest(made.model, made.model_digest, made.units, made.openvino, made.files)


class Stopped(Exception):
    pass


def test_copying_ends_when_the_caller_has_enough(tmp_path: Path, made: Made) -> None:
    store = Store(tmp_path / "store")
    publish(store)

    def stop(done: int, total: int) -> None:
        raise Stopped

    with pytest.raises(Stopped):
        store.partial(overlapping(*made), stop)
    with store.partial(overlapping(*made)) as partial:  # its lock is free
        assert partial.missing == (_digest(b"new"),)
    assert [one.name for one in (tmp_path / "store" / "partial").iterdir() if one.is_dir()] == [
        overlapping(*made).digest
    ]
