"""Which stages of a store are in use, and when each was used last.

    ROOT/use/DIGEST.lock    shared by those who use the stage; its time is that of the last use

Several agents may share a store: whoever removes a stage needs its lock for himself. A store that
cannot be written has neither: nobody removes anything from it. Blocks.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from meshinfer.core.ids import Digest
from meshinfer.weights.lock import FileLock

_TOUCH_EVERY_S = 60.0
_POLL_S = 0.05


class StageUse:
    """`folder` is ROOT/use. Safe for several threads."""

    def __init__(self, folder: Path, now: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._now = now
        self._touched: dict[Digest, float] = {}

    def touch(self, digest: Digest) -> None:
        """The stage is used now. Told at most once a minute: pieces are many."""
        now = self._now()
        if now - self._touched.get(digest, -_TOUCH_EVERY_S) < _TOUCH_EVERY_S:
            return
        self._touched[digest] = now
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            path = self._path(digest)
            with path.open("ab"):
                pass
            os.utime(path)

    def last(self, digest: Digest, otherwise: Path) -> float:
        """Seconds since 1970; the time of `otherwise` for a stage that nobody used yet."""
        for path in (self._path(digest), otherwise):
            with contextlib.suppress(OSError):
                return path.stat().st_mtime
        return 0.0

    @contextmanager
    def hold(self, digest: Digest, sleep: Callable[[float], None] = time.sleep) -> Iterator[None]:
        """In the block the stage is not removed, by any process. Waits for one that removes it just
        now: look for the stage inside the block."""
        lock = FileLock(self._path(digest))
        with contextlib.suppress(OSError):
            while not lock.try_acquire(shared=True):
                sleep(_POLL_S)
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def alone(self, digest: Digest) -> Iterator[bool]:
        """Whether nobody uses the stage; then nobody begins to, in the block."""
        lock = FileLock(self._path(digest))
        try:
            free = lock.try_acquire()
        except OSError:
            free = False
        try:
            yield free
        finally:
            lock.release()

    def _path(self, digest: Digest) -> Path:
        return self._folder / f"{digest}.lock"
