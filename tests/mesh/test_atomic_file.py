"""Replaced as a whole, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshinfer.mesh.atomic_file import replace_file


def test_it_replaces_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"
    replace_file(path, "one")
    replace_file(path, "zwei ü")
    assert path.read_text(encoding="utf-8") == "zwei ü"
    assert list(path.parent.iterdir()) == [path]


def test_what_an_interrupted_write_left_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / "file.part").write_text("half a")
    replace_file(tmp_path / "file", "whole")
    assert (tmp_path / "file").read_text() == "whole"
    assert not (tmp_path / "file.part").exists()


def test_a_failure_keeps_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.mkdir()  # a folder cannot be replaced by a file
    (target / "precious").touch()
    with pytest.raises(OSError, match="file"):
        replace_file(target, "text")
    assert [one.name for one in tmp_path.iterdir()] == ["file"]
    assert (target / "precious").exists()
