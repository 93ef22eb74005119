from __future__ import annotations

from pathlib import Path

import pytest

from meshinfer.weights.publish import publish, recover


def _folder(path: Path, text: str) -> Path:
    path.mkdir()
    (path / "a").write_text(text)
    return path


def test_a_folder_takes_the_final_name_or_the_place_of_another(tmp_path: Path) -> None:
    final = tmp_path / "m"
    publish(_folder(tmp_path / "one", "1"), final)
    assert (final / "a").read_text() == "1"
    publish(_folder(tmp_path / "two", "2"), final)
    assert (final / "a").read_text() == "2"
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_what_an_earlier_kill_left_is_swept(tmp_path: Path) -> None:
    _folder(tmp_path / ".m.old", "0")
    _folder(tmp_path / "m", "1")
    publish(_folder(tmp_path / "two", "2"), tmp_path / "m")
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_a_folder_that_cannot_take_the_place_leaves_the_old_one(tmp_path: Path) -> None:
    _folder(tmp_path / "m", "1")
    with pytest.raises(FileNotFoundError):
        publish(tmp_path / "missing", tmp_path / "m")
    assert (tmp_path / "m" / "a").read_text() == "1"


def test_recovery_after_a_kill_between_the_renames(tmp_path: Path) -> None:
    final = tmp_path / "m"
    _folder(tmp_path / ".m.old", "1")
    recover(final)
    recover(final)
    assert (final / "a").read_text() == "1"
    _folder(tmp_path / ".m.old", "0")
    recover(final)
    assert (final / "a").read_text() == "1"
