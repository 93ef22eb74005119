"""Taking folders out of a store: out of sight at once, then away.

What cannot be deleted yet (Windows keeps a mapped file) waits in `scratch` until the next look.
Called by the store. Blocks.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from meshinfer.errors import DiskFull
from meshinfer.weights.disk import disk_errors, first_write, make_folder, sync_folder
from meshinfer.weights.lock import FileLock


class ScratchFolders:
    """Folders below ROOT/scratch, each with a lock beside it: what killed processes left is removed
    by whoever comes next."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextmanager
    def new(self) -> Iterator[Path]:
        """An empty folder, removed afterwards unless it was renamed. Raises DiskFull."""
        self.sweep()
        make_folder(self._folder)
        # The lock comes first: a folder without one would be nobody's.
        folder, lock = self._name()
        with first_write(self._folder):
            while not lock.try_acquire():  # another process sweeps it just now
                folder, lock = self._name()
        try:
            with disk_errors(self._folder):
                folder.mkdir()
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            lock.release()
            _forget(folder)

    def sweep(self) -> None:
        for lock_path in list(self._folder.glob("*.lock")):
            lock = FileLock(lock_path)
            with contextlib.suppress(OSError):
                if lock.try_acquire():
                    shutil.rmtree(lock_path.with_suffix(""), ignore_errors=True)
                    lock.release()
                    _forget(lock_path.with_suffix(""))

    def remove(self, folder: Path) -> bool:
        """Whether `folder` is out of sight: not when a file in it is open on Windows, or the store
        cannot be written."""
        try:
            with self.new() as aside:
                folder.rename(aside / "stage")
                sync_folder(folder.parent)
        except FileNotFoundError:  # another process did it
            return True
        except (OSError, DiskFull):
            return False
        return True

    def _name(self) -> tuple[Path, FileLock]:
        folder = self._folder / f"stage-{uuid4().hex}"
        return folder, FileLock(folder.with_suffix(".lock"))


def _forget(folder: Path) -> None:
    """Its lock goes when the folder is gone; else a later sweep needs it."""
    if not folder.exists():
        with contextlib.suppress(OSError):
            folder.with_suffix(".lock").unlink(missing_ok=True)
