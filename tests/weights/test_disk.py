from __future__ import annotations

import errno
import hashlib
from pathlib import Path

import pytest

from meshinfer.errors import DiskFull
from meshinfer.weights.disk import disk_errors, file_digest, require_room, write_whole


def test_room_that_is_there_is_no_news(tmp_path: Path) -> None:
    require_room(tmp_path / "not" / "yet", 1)


def test_missing_room_is_told_with_both_figures(tmp_path: Path) -> None:
    with pytest.raises(DiskFull, match=r"1 TB are needed in .* and .*B are free.* Free disk space"):
        require_room(tmp_path, 10**12)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_has_a_name_of_its_own(tmp_path: Path, number: int) -> None:
    with pytest.raises(DiskFull), disk_errors(tmp_path):
        raise OSError(number, "full")


def test_other_errors_stay_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(PermissionError), disk_errors(tmp_path):
        raise PermissionError(errno.EACCES, "no")


def test_a_file_is_written_whole_over_another(tmp_path: Path) -> None:
    for data in (b"one", b"two"):
        write_whole(tmp_path / "a", data)
    assert (tmp_path / "a").read_bytes() == b"two"
    assert file_digest(tmp_path / "a") == hashlib.sha256(b"two").hexdigest()
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
