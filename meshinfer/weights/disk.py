"""Room and durability on the disk. Called by everything in this lane that writes."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

from meshinfer.core.ids import Digest
from meshinfer.core.units import format_bytes
from meshinfer.errors import DiskFull, StageFailed

MARGIN_BYTES = 64 << 20
"""Left free for logs and the system whatever we store."""

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_CANNOT_HOLD = {
    errno.EFBIG: "does not take files of this size",
    errno.EROFS: "cannot be written",
}
_ANOTHER_DISK = "Free disk space, or choose a folder on another disk."
_NO_RANGE_COPY = frozenset(
    {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF}
)
"""What systems answer that do not copy within the kernel, or not between these two files."""

READ_BYTES = 1 << 20


def require_room(folder: Path, needed: int) -> None:
    """Raises DiskFull naming both figures unless `needed` bytes fit where `folder` lies."""
    free = _free(folder)
    if needed + MARGIN_BYTES > free:
        raise DiskFull(
            f"{format_bytes(needed)} are needed in {folder} and {format_bytes(free)} are free.",
            _ANOTHER_DISK,
        )


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """A disk in the block that is full, that cannot be written or that takes no large files becomes
    DiskFull; other errors pass."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise DiskFull(f"The disk that holds {folder} is full.", _ANOTHER_DISK) from error
        if error.errno in _CANNOT_HOLD:
            why = _CANNOT_HOLD[error.errno]
            raise DiskFull(
                f"The disk that holds {folder} {why}.", "Choose a folder on another disk."
            ) from error
        raise
    except (RuntimeError, StageFailed) as error:
        # OpenVINO writes through C++ streams, which do not say why they failed.
        if "iostream" not in str(error) or _free(folder) >= READ_BYTES:
            raise
        raise DiskFull(f"The disk that holds {folder} is full.", _ANOTHER_DISK) from error


@contextmanager
def first_write(folder: Path) -> Iterator[None]:
    """`disk_errors` for what creates a file or folder: that this user may not becomes DiskFull as
    well. Elsewhere it may mean that somebody has a file open."""
    try:
        with disk_errors(folder):
            yield
    except PermissionError as error:
        raise DiskFull(
            f"{folder} cannot be written.", "Choose a folder that this user may write to."
        ) from error


def make_folder(folder: Path) -> None:
    """`folder` and those above it, unless they are there. Raises DiskFull where nothing may be
    written."""
    with first_write(folder):
        folder.mkdir(parents=True, exist_ok=True)


def file_digest(path: Path) -> Digest:
    """SHA-256 of a whole file. Blocks."""
    with path.open("rb") as file:
        return Digest(hashlib.file_digest(file, "sha256").hexdigest())


def sync_file(path: Path) -> None:
    """The file's bytes are on the disk when this returns."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """A rename in `folder` survives a power cut. Windows has no such call and orders renames."""
    if sys.platform == "win32":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path: Path, data: bytes) -> None:
    """`data` under its final name, or nothing there."""
    scratch = path.with_name(f"{path.name}.new")
    with disk_errors(path.parent), scratch.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)


def copy_range(source: FileIO, offset: int, target: FileIO, place: int, length: int) -> None:
    """Copy bytes between two unbuffered files, within the kernel where it can (a file system with
    shared blocks then copies nothing). Raises EOFError when the source ends before."""
    done = _kernel_copy(source, offset, target, place, length)
    source.seek(offset + done)
    target.seek(place + done)
    while done < length:
        data = source.read(min(READ_BYTES, length - done))
        if not data:
            raise EOFError
        done += len(data)
        write_all(target, data)


def _kernel_copy(source: FileIO, offset: int, target: FileIO, place: int, length: int) -> int:
    """How many bytes the kernel copied."""
    done = 0
    if sys.platform == "linux":
        while done < length:
            try:
                count = os.copy_file_range(
                    source.fileno(), target.fileno(), length - done, offset + done, place + done
                )
            except OSError as error:
                if error.errno not in _NO_RANGE_COPY:
                    raise
                break
            if count == 0:
                break
            done += count
    return done


def write_all(file: FileIO, data: bytes | bytearray | memoryview) -> None:
    """To an unbuffered file, which may take less than all at once."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


def _free(folder: Path) -> int:
    return shutil.disk_usage(_existing(folder)).free


def _existing(folder: Path) -> Path:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder
