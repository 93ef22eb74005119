"""Makes room in a store: measures, chooses by `weights.room`, removes what nobody uses.

Called by the store. One process at a time measures and claims, so that two agents that share a
store do not count on the same bytes. Blocks.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from meshinfer.core.ids import Digest
from meshinfer.core.units import format_bytes
from meshinfer.errors import DiskFull
from meshinfer.weights.disk import disk_errors, first_write, make_folder
from meshinfer.weights.lock import FileLock, exclusive
from meshinfer.weights.manifest import is_digest
from meshinfer.weights.room import Entry, EntryKind, StoreLimits, shortage, to_remove
from meshinfer.weights.stage_use import StageUse
from meshinfer.weights.store_folder import StoreFolder, folders

_BLOCK_BYTES = 512
"""Unit of st_blocks, whatever the file system."""


class RoomKeeper:
    """`remove` takes a folder out of the store, and tells whether it could."""

    def __init__(
        self,
        root: StoreFolder,
        limits: StoreLimits,
        use: StageUse,
        remove: Callable[[Path], bool],
    ) -> None:
        self._root = root
        self._limits = limits
        self._use = use
        self._remove = remove

    @contextmanager
    def claim(self, size: int, on_disk: int, own: Path | None = None) -> Iterator[None]:
        """Room for `size` bytes, of which `on_disk` are still to be written; in the block nobody
        else gets it. `own` is what is being filled: neither counted nor removed. Raises DiskFull
        with the figures when removing all that nobody uses would not help; nothing is removed
        then."""
        root = self._root.root
        make_folder(root)
        with ExitStack() as held:
            with first_write(root):
                held.enter_context(exclusive(root / "room.lock"))
            with disk_errors(root):
                self._make(size, on_disk, own)
                yield

    def entries(self) -> list[Entry]:
        """All that the store keeps."""
        found = []
        for kind, parent in (
            (EntryKind.STAGE, self._root.stages),
            (EntryKind.OUTLINE, self._root.outlines),
            (EntryKind.PARTIAL, self._root.partials),
        ):
            for folder in folders(parent):
                digest = Digest(folder.name.partition(".")[0])
                if is_digest(digest):
                    size, on_disk = _measure(folder)
                    last = self._use.last(digest, folder)
                    found.append(Entry(kind, digest, folder, size, on_disk, last))
        return found

    def _make(self, size: int, on_disk: int, own: Path | None) -> None:
        entries = [entry for entry in self.entries() if entry.folder != own]
        free = shutil.disk_usage(self._root.root).free
        lack = shortage(self._limits, entries, size, on_disk, free)
        while not lack.none:
            idle = [entry for entry in entries if self._idle(entry)]
            chosen = to_remove(idle, lack)
            if chosen is None:
                raise self._full(entries, idle, size, free)
            for entry in chosen:
                if self._evict(entry):  # else it came into use: the next round takes another
                    lack = lack.without(entry)
            entries = [entry for entry in entries if entry not in chosen]

    def _idle(self, entry: Entry) -> bool:
        with self._alone(entry) as idle:
            return idle

    def _evict(self, entry: Entry) -> bool:
        with self._alone(entry) as idle:
            return idle and self._remove(entry.folder)

    @contextmanager
    def _alone(self, entry: Entry) -> Iterator[bool]:
        if entry.kind is not EntryKind.PARTIAL:
            with self._use.alone(entry.stage) as idle:
                yield idle
            return
        lock = FileLock(entry.folder.with_name(f"{entry.folder.name}.lock"))
        try:
            yield lock.try_acquire()
        finally:
            lock.release()

    def _full(
        self, entries: Sequence[Entry], idle: Sequence[Entry], size: int, free: int
    ) -> DiskFull:
        used = sum(entry.size for entry in entries)
        quota = self._limits.quota_bytes
        allowed = "" if quota is None else f" of {format_bytes(quota)} allowed"
        return DiskFull(
            f"{format_bytes(size)} are needed in {self._root.root} and {format_bytes(free)} are "
            f"free; stages have {format_bytes(used)}{allowed} there, and those that nobody uses "
            f"{format_bytes(sum(entry.size for entry in idle))}.",
            "Free disk space, allow the store more, or choose a folder on another disk.",
        )


def _measure(folder: Path) -> tuple[int, int]:
    """(bytes of the files, bytes that the disk gets back)."""
    size = on_disk = 0
    with contextlib.suppress(OSError):  # it goes just now
        for path in folder.iterdir():
            state = path.lstat()
            size += state.st_size
            blocks = getattr(state, "st_blocks", None)  # Windows tells none
            on_disk += state.st_size if blocks is None else blocks * _BLOCK_BYTES
    return size, on_disk
