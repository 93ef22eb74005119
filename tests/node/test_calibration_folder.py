"""Records are kept a file each; trouble with them costs time, never a stage."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from meshinfer.node.calibration_folder import MOST_KEPT, CalibrationFolder
from tests.engine.test_calibration_record import RECORD

KEY = "a" * 64


def test_a_record_is_kept(tmp_path: Path) -> None:
    folder = CalibrationFolder(tmp_path / "calibration")
    assert folder.load(KEY) is None
    folder.save(KEY, RECORD)
    assert folder.load(KEY) == RECORD
    assert folder.load("b" * 64) is None


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"null", b" " * (300 << 10)])
def test_a_damaged_record_is_measured_again(tmp_path: Path, content: bytes) -> None:
    (tmp_path / f"{KEY}.json").write_bytes(content)
    folder = CalibrationFolder(tmp_path)
    assert folder.load(KEY) is None
    folder.save(KEY, RECORD)
    assert folder.load(KEY) == RECORD


def test_a_folder_that_cannot_be_written_costs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    folder = CalibrationFolder(blocked / "calibration")
    folder.save(KEY, RECORD)
    assert folder.load(KEY) is None
    assert "cannot be kept" in caplog.text


def test_the_oldest_records_go(tmp_path: Path) -> None:
    folder = CalibrationFolder(tmp_path)
    for number in range(MOST_KEPT + 1):
        path = tmp_path / f"{number:064x}.json"
        path.write_text("{}")
        os.utime(path, (number, number))
    folder.save(KEY, RECORD)
    left = {path.stem for path in tmp_path.glob("*.json")}
    assert len(left) == MOST_KEPT
    assert KEY in left
    assert not {f"{number:064x}" for number in range(2)} & left
