"""A folder gets its final name, or nothing of it is seen there. Called by `prepare`."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from meshinfer.errors import StageFailed
from meshinfer.weights.disk import disk_errors, sync_file, sync_folder


def publish(scratch: Path, final: Path) -> None:
    """`scratch` becomes `final`, in the place of what was there. Both lie on one disk. Raises
    DiskFull, StageFailed (Windows: a program holds the old files open)."""
    old = _old(final)
    with disk_errors(scratch):
        for path in scratch.iterdir():
            # A hard link to a file that only its owner may write was durable before it came here.
            with contextlib.suppress(PermissionError):
                sync_file(path)
        sync_folder(scratch)
        shutil.rmtree(old, ignore_errors=True)
        try:
            if final.exists():
                final.rename(old)
            scratch.rename(final)
        except PermissionError as error:
            recover(final)
            raise StageFailed(
                f"The files in {final} are in use by another program.",
                "Stop the agent of this PC, then try again.",
            ) from error
        except OSError:
            recover(final)
            raise
        sync_folder(final.parent)
    shutil.rmtree(old, ignore_errors=True)


def recover(final: Path) -> None:
    """After a kill between two renames: the old folder is there again."""
    old = _old(final)
    if old.is_dir() and not final.exists():
        old.rename(final)


def _old(final: Path) -> Path:
    return final.with_name(f".{final.name}.old")
