"""The epoch on disk never goes backwards, whatever happens to the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshinfer.core.ids import NO_EPOCH, Epoch, NodeId
from meshinfer.errors import DiskFull
from meshinfer.mesh.epoch_file import EpochFile

A, B = NodeId("a"), NodeId("b")


def test_a_new_pc_has_none(tmp_path: Path) -> None:
    assert EpochFile(tmp_path / "epoch").load() == NO_EPOCH


def test_it_survives_a_restart(tmp_path: Path) -> None:
    EpochFile(tmp_path / "new folder" / "epoch").save(Epoch(3, A))
    assert EpochFile(tmp_path / "new folder" / "epoch").load() == Epoch(3, A)
    assert [one.name for one in (tmp_path / "new folder").iterdir()] == ["epoch"]


@pytest.mark.parametrize("older", [Epoch(2, B), Epoch(3, A), NO_EPOCH])
def test_an_older_one_changes_nothing(tmp_path: Path, older: Epoch) -> None:
    file = EpochFile(tmp_path / "epoch")
    file.save(Epoch(3, A))
    file.save(older)
    assert file.load() == EpochFile(tmp_path / "epoch").load() == Epoch(3, A)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b'{"counter": "x", "leader": "a"}', b"\xff\xfe", b"{}"]
)
def test_a_damaged_file_counts_as_none_and_is_replaced(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "epoch"
    path.write_bytes(content)
    file = EpochFile(path)
    assert file.load() == NO_EPOCH
    file.save(Epoch(1, A))
    assert EpochFile(path).load() == Epoch(1, A)


def test_a_file_that_cannot_be_written_is_an_error_and_not_believed(tmp_path: Path) -> None:
    (tmp_path / "folder").write_text("a file where the folder belongs")
    file = EpochFile(tmp_path / "folder" / "epoch")
    with pytest.raises(DiskFull):
        file.save(Epoch(3, A))
    assert file.load() == NO_EPOCH
