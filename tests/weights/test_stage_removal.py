from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from meshinfer.weights.lock import FileLock
from meshinfer.weights.stage_removal import ScratchFolders


@pytest.fixture
def stage(tmp_path: Path) -> Path:
    (tmp_path / "stages" / "one").mkdir(parents=True)
    (tmp_path / "stages" / "one" / "weights.bin").write_bytes(b"x")
    return tmp_path / "stages" / "one"


def test_a_folder_is_removed_with_all_traces(tmp_path: Path, stage: Path) -> None:
    assert ScratchFolders(tmp_path / "scratch").remove(stage)
    assert not stage.exists()
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_folder_that_is_gone_counts_as_removed(tmp_path: Path, stage: Path) -> None:
    scratch = ScratchFolders(tmp_path / "scratch")
    assert scratch.remove(stage)
    assert scratch.remove(stage)


def test_a_folder_that_cannot_be_moved_stays_and_is_removed_later(
    tmp_path: Path, stage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D10: Windows does not move a folder with an open file."""
    scratch = ScratchFolders(tmp_path / "scratch")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", _denied)
        assert not scratch.remove(stage)
    assert (stage / "weights.bin").is_file()
    assert scratch.remove(stage)
    assert not stage.exists()


def test_a_file_that_cannot_be_deleted_is_out_of_sight_and_deleted_later(
    tmp_path: Path, stage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D10: Windows does not delete a mapped file."""
    scratch = ScratchFolders(tmp_path / "scratch")
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", _denied)
        assert scratch.remove(stage)
    assert not stage.exists()
    assert len(list((tmp_path / "scratch").glob("*/stage/weights.bin"))) == 1
    scratch.sweep()
    assert list((tmp_path / "scratch").iterdir()) == []


def test_what_another_process_is_making_is_not_swept(tmp_path: Path) -> None:
    scratch = ScratchFolders(tmp_path / "scratch")
    with scratch.new() as folder:
        ScratchFolders(tmp_path / "scratch").sweep()
        assert folder.is_dir()
        assert not FileLock(folder.with_suffix(".lock")).try_acquire()
    assert list((tmp_path / "scratch").iterdir()) == []


def test_what_was_renamed_is_kept(tmp_path: Path) -> None:
    with ScratchFolders(tmp_path / "scratch").new() as folder:
        folder.rename(tmp_path / "published")
    assert (tmp_path / "published").is_dir()


def test_where_nothing_can_be_written_nothing_is_removed(tmp_path: Path, stage: Path) -> None:
    (tmp_path / "scratch").touch()  # no folder can be made there
    assert not ScratchFolders(tmp_path / "scratch").remove(stage)
    assert stage.is_dir()


def _denied(*_: Any, **__: Any) -> None:
    raise PermissionError(13, "in use")
