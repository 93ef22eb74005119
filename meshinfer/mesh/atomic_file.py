"""A small file that is either the old one or the new one, whatever happens in between."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

_WINDOWS_TRIES = 5


def replace_file(path: Path, text: str) -> None:
    """Write, sync, rename. Raises OSError and then leaves nothing behind. Blocks."""
    replace_bytes(path, text.encode())


def replace_bytes(path: Path, data: bytes) -> None:
    """The same for bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        _rename(part, path)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _rename(part: Path, path: Path) -> None:
    """On Windows a virus scanner may hold the old file open for a moment."""
    for attempt in range(_WINDOWS_TRIES):
        try:
            part.replace(path)
            return
        except PermissionError:
            if attempt == _WINDOWS_TRIES - 1:
                raise
            time.sleep(0.05 * 2**attempt)


def _sync_folder(folder: Path) -> None:
    """POSIX keeps the rename in memory until the folder is synced; Windows has no such call."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
