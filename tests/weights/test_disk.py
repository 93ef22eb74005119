from __future__ import annotations

import errno
import hashlib
import os
import random
import subprocess
import sys
from io import FileIO
from pathlib import Path

import pytest

from meshinfer.errors import DiskFull
from meshinfer.weights.disk import (
    copy_range,
    disk_errors,
    file_digest,
    make_folder,
    require_room,
    write_whole,
)


def test_room_that_is_there_is_no_news(tmp_path: Path) -> None:
    require_room(tmp_path / "not" / "yet", 1)


def test_missing_room_is_told_with_both_figures(tmp_path: Path) -> None:
    with pytest.raises(DiskFull, match=r"1 TB are needed in .* and .*B are free.* Free disk space"):
        require_room(tmp_path, 10**12)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_has_a_name_of_its_own(tmp_path: Path, number: int) -> None:
    with pytest.raises(DiskFull), disk_errors(tmp_path):
        raise OSError(number, "full")


@pytest.mark.parametrize(
    ("number", "why"),
    [(errno.EFBIG, "does not take files of this size"), (errno.EROFS, "cannot be written")],
)
def test_a_disk_that_cannot_hold_it_says_why(tmp_path: Path, number: int, why: str) -> None:
    with pytest.raises(DiskFull, match=f"{why}.*another disk"), disk_errors(tmp_path):
        raise OSError(number, "no")


@pytest.mark.skipif(os.name == "nt", reason="a folder's rights do not forbid this on Windows")
def test_a_folder_that_may_not_be_made_is_no_crash(tmp_path: Path) -> None:
    make_folder(tmp_path / "a" / "b")
    make_folder(tmp_path / "a" / "b")
    script = (
        "import os\n"
        "from pathlib import Path\n"
        "from meshinfer.errors import DiskFull\n"
        "from meshinfer.weights.disk import make_folder\n"
        f"folder = Path({str(tmp_path / 'a')!r})\n"
        "folder.chmod(0o555)\n"
        "if os.geteuid() == 0:\n"
        "    os.seteuid(65534)  # rights do not bind root\n"
        "try:\n"
        "    make_folder(folder / 'c')\n"
        "except DiskFull as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "cannot be written. Choose a folder that this user may write to." in done.stdout


@pytest.mark.parametrize("within_kernel", [True, False])
@pytest.mark.parametrize("length", [0, 1, 3 << 20])
def test_ranges_are_copied_wherever_the_system_can(
    tmp_path: Path, length: int, within_kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not within_kernel:
        monkeypatch.setattr(sys, "platform", "another")
    data = random.Random(length).randbytes(length + 20)
    (tmp_path / "from").write_bytes(data)
    (tmp_path / "to").write_bytes(b"before")
    with FileIO(tmp_path / "from") as source, FileIO(tmp_path / "to", "r+b") as target:
        copy_range(source, 7, target, 4, length)
    assert (tmp_path / "to").read_bytes() == b"before"[:4] + data[7 : 7 + length] + (
        b"before"[4 + length :]
    )


def test_a_range_within_one_file_is_copied_too(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"0123456789")
    with FileIO(tmp_path / "a") as source, FileIO(tmp_path / "a", "r+b") as target:
        copy_range(source, 0, target, 0, 10)  # the kernel refuses overlapping ranges
    assert (tmp_path / "a").read_bytes() == b"0123456789"


def test_a_range_beyond_the_end_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"0123456789")
    with (
        FileIO(tmp_path / "a") as source,
        FileIO(tmp_path / "b", "wb") as target,
        pytest.raises(EOFError),
    ):
        copy_range(source, 5, target, 0, 6)


def test_other_errors_stay_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(PermissionError), disk_errors(tmp_path):
        raise PermissionError(errno.EACCES, "no")


def test_a_file_is_written_whole_over_another(tmp_path: Path) -> None:
    for data in (b"one", b"two"):
        write_whole(tmp_path / "a", data)
    assert (tmp_path / "a").read_bytes() == b"two"
    assert file_digest(tmp_path / "a") == hashlib.sha256(b"two").hexdigest()
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
