"""Room and durability on the disk. Called by everything in this lane that writes."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from meshinfer.core.ids import Digest
from meshinfer.core.units import format_bytes
from meshinfer.errors import DiskFull

MARGIN_BYTES = 64 << 20
"""Left free for logs and the system whatever we store."""

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
READ_BYTES = 1 << 20


def require_room(folder: Path, needed: int) -> None:
    """Raises DiskFull naming both figures unless `needed` bytes fit where `folder` lies."""
    free = shutil.disk_usage(_existing(folder)).free
    if needed + MARGIN_BYTES > free:
        raise DiskFull(
            f"{format_bytes(needed)} are needed in {folder} and {format_bytes(free)} are free.",
            "Free disk space, or choose a folder on another disk.",
        )


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """A full disk in the block becomes DiskFull; other errors pass."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise DiskFull(
            f"The disk that holds {folder} is full.",
            "Free disk space, or choose a folder on another disk.",
        ) from error


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


def _existing(folder: Path) -> Path:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder
