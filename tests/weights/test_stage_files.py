from __future__ import annotations

import hashlib
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from meshinfer.core.ids import Digest
from meshinfer.core.model import PIECE_BYTES, StageManifest
from meshinfer.errors import ShardCorrupt
from meshinfer.weights.manifest import build_manifest
from meshinfer.weights.stage_files import (
    JOURNAL_FILE,
    is_whole,
    publish_folder,
    read_manifest,
    right_pieces,
    write_manifest,
)
from tests.weights.stage_maker import flip, make_files, pieces_of

WEIGHTS = "openvino_model.bin"


def _stage(folder: Path) -> StageManifest:
    manifest, _ = make_files(folder)
    write_manifest(folder, manifest)
    return manifest


def _damage(path: Path, how: str) -> None:
    match how:
        case "altered":
            flip(path, PIECE_BYTES + 1)
        case "truncated":
            os.truncate(path, path.stat().st_size - 1)
        case "longer":
            os.truncate(path, path.stat().st_size + 1)
        case "gone":
            path.unlink()
        case "linked":
            path.rename(path.parent.parent / "outside")
            path.symlink_to(path.parent.parent / "outside")


@pytest.mark.parametrize("how", ["altered", "truncated", "longer", "gone", "linked"])
def test_a_stage_is_whole_until_a_file_is_not_its_own(tmp_path: Path, how: str) -> None:
    if how == "linked" and sys.platform == "win32":
        pytest.skip("links need rights on Windows")
    manifest = _stage(tmp_path / "stage")
    assert is_whole(tmp_path / "stage", manifest)
    _damage(tmp_path / "stage" / WEIGHTS, how)
    assert not is_whole(tmp_path / "stage", manifest)


@pytest.mark.parametrize(
    ("how", "wrong"), [("altered", {2}), ("truncated", {3}), ("longer", set()), ("gone", {1, 2, 3})]
)
def test_only_the_damaged_pieces_are_wrong(tmp_path: Path, how: str, wrong: set[int]) -> None:
    manifest, content = make_files(tmp_path)
    _damage(tmp_path / WEIGHTS, how)
    pieces = [Digest(hashlib.sha256(one).hexdigest()) for one in pieces_of(content)]
    right = {digest for number, digest in enumerate(pieces) if number not in wrong}
    assert right_pieces(tmp_path, manifest) == right
    assert right_pieces(tmp_path, manifest, pieces[:2]) == right & set(pieces[:2])


def test_a_piece_is_right_only_if_it_is_right_wherever_it_belongs(tmp_path: Path) -> None:
    made, content = make_files(tmp_path)
    weights = next(file for file in made.files if file.name == WEIGHTS)
    (tmp_path / "copy.bin").write_bytes(content[WEIGHTS])
    files = [weights, replace(weights, name="copy.bin")]
    manifest = build_manifest(made.model, made.model_digest, made.units, made.openvino, files)
    assert right_pieces(tmp_path, manifest) == set(weights.pieces)
    flip(tmp_path / "copy.bin", 3)
    assert right_pieces(tmp_path, manifest) == set(weights.pieces[1:])


@pytest.mark.parametrize("data", [None, b"", b"{}", b"\xff\xfe", b"[]", b'{"files": []}'])
def test_a_manifest_that_is_none_is_corrupt(tmp_path: Path, data: bytes | None) -> None:
    if data is not None:
        (tmp_path / "manifest.json").write_bytes(data)
    with pytest.raises(ShardCorrupt):
        read_manifest(tmp_path)


def test_a_folder_becomes_final_without_its_journal(tmp_path: Path) -> None:
    manifest = _stage(tmp_path / "made")
    (tmp_path / "made" / JOURNAL_FILE).write_text("x\n", encoding="ascii")
    final = tmp_path / "stages" / manifest.digest
    assert publish_folder(tmp_path / "made", final) == final
    assert not (tmp_path / "made").exists()
    assert read_manifest(final) == manifest
    assert not (final / JOURNAL_FILE).exists()


def test_the_slower_of_two_is_dropped(tmp_path: Path) -> None:
    manifest = _stage(tmp_path / "first")
    _stage(tmp_path / "second")
    final = tmp_path / "stages" / manifest.digest
    publish_folder(tmp_path / "first", final)
    before = (final / WEIGHTS).stat().st_ino
    publish_folder(tmp_path / "second", final)
    assert (final / WEIGHTS).stat().st_ino == before
    assert not (tmp_path / "second").exists()


@pytest.mark.parametrize("manifest_text", [None, "{}"])
def test_what_is_no_stage_gives_way(tmp_path: Path, manifest_text: str | None) -> None:
    """A stage whose manifest was lost or altered is not taken for one that came first."""
    manifest = _stage(tmp_path / "made")
    final = tmp_path / "stages" / manifest.digest
    final.mkdir(parents=True)
    (final / "left").touch()
    if manifest_text is not None:
        (final / "manifest.json").write_text(manifest_text, encoding="utf-8")
    publish_folder(tmp_path / "made", final)
    assert is_whole(final, manifest)
    assert not (final / "left").exists()
