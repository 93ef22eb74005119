"""One process at a time on a piece of work, or several that only use it. The system drops the lock
when its holder dies."""

from __future__ import annotations

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

    def try_acquire(self, shared: bool = False) -> bool:
        """False when another holder, in this process or another, has it. Shared holders keep out
        only those who want it for themselves."""
        assert self._file is None, "the lock is held already"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        file = self._path.open("ab")
        if not _try_lock(file, shared):
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
    import ctypes
    import msvcrt
    from ctypes import wintypes

    class _Overlapped(ctypes.Structure):
        _fields_ = (
            ("Internal", ctypes.c_void_p),
            ("InternalHigh", ctypes.c_void_p),
            ("Offset", wintypes.DWORD),
            ("OffsetHigh", wintypes.DWORD),
            ("hEvent", wintypes.HANDLE),
        )

    _FAIL_IMMEDIATELY, _EXCLUSIVE = 1, 2
    _lock_file_ex = ctypes.WinDLL("kernel32", use_last_error=True).LockFileEx
    _lock_file_ex.argtypes = (
        wintypes.HANDLE,
        wintypes.DWORD,
        wintypes.DWORD,
        wintypes.DWORD,
        wintypes.DWORD,
        ctypes.POINTER(_Overlapped),
    )
    _lock_file_ex.restype = wintypes.BOOL

    def _try_lock(file: IO[bytes], shared: bool) -> bool:
        """msvcrt.locking knows no shared locks. The first byte stands for the file."""
        flags = _FAIL_IMMEDIATELY if shared else _FAIL_IMMEDIATELY | _EXCLUSIVE
        handle = msvcrt.get_osfhandle(file.fileno())
        return bool(_lock_file_ex(handle, flags, 0, 1, 0, ctypes.byref(_Overlapped())))

else:
    import fcntl

    def _try_lock(file: IO[bytes], shared: bool) -> bool:
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        try:
            fcntl.flock(file.fileno(), kind | fcntl.LOCK_NB)
        except OSError:
            return False
        return True
