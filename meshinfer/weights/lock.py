"""One process at a time on a piece of work. The system drops the lock when its holder dies."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

_POLL_S = 0.2


class FileLock:
    """A lock on a file beside the work, never within a folder that will be renamed: Windows does
    not rename a folder that holds an open file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None

    def try_acquire(self) -> bool:
        """False when another holder, in this process or another, has it."""
        assert self._file is None, "the lock is held already"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        file = self._path.open("ab")
        if not _try_lock(file):
            file.close()
            return False
        self._file = file
        return True

    def release(self) -> None:
        """Idempotent. The empty file stays: removing it would let two holders lock two files."""
        if self._file is not None:
            self._file.close()
            self._file = None


@contextmanager
def exclusive(path: Path, sleep: Callable[[float], None] = time.sleep) -> Iterator[None]:
    """Wait for the lock on `path`, hold it in the block. Blocks."""
    lock = FileLock(path)
    while not lock.try_acquire():
        sleep(_POLL_S)
    try:
        yield
    finally:
        lock.release()


if sys.platform == "win32":
    import msvcrt

    def _try_lock(file: IO[bytes]) -> bool:
        file.seek(0, os.SEEK_SET)
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def _try_lock(file: IO[bytes]) -> bool:
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True
