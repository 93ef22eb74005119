"""How much a store may take, and what leaves when more is needed: the least recently used. Pure.

Called by the store's room keeper, which measures and removes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from meshinfer.core.ids import Digest
from meshinfer.weights.disk import MARGIN_BYTES


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """`quota_bytes` is what all stages of a store may have together, None for no limit;
    `keep_free_bytes` stays free on its disk."""

    quota_bytes: int | None = None
    keep_free_bytes: int = MARGIN_BYTES


class EntryKind(StrEnum):
    STAGE = "stage"
    OUTLINE = "outline"
    PARTIAL = "partial"


@dataclass(frozen=True, slots=True)
class Entry:
    """Something in a store that may leave, and what it would free."""

    kind: EntryKind
    stage: Digest
    folder: Path
    size: int  # bytes that count against the quota: of a partial stage, all that it will have
    on_disk: int  # bytes that the disk gets back
    last_use: float  # seconds since 1970


@dataclass(frozen=True, slots=True)
class Shortage:
    """Bytes too many for the quota, and too few on the disk."""

    quota: int
    disk: int

    @property
    def none(self) -> bool:
        return self.quota <= 0 and self.disk <= 0

    def without(self, entry: Entry) -> Shortage:
        return Shortage(self.quota - entry.size, self.disk - entry.on_disk)


def shortage(
    limits: StoreLimits, entries: Sequence[Entry], size: int, on_disk: int, free: int
) -> Shortage:
    """Before `size` more bytes are kept, of which `on_disk` are still to be written."""
    used = sum(entry.size for entry in entries)
    over = used + size - limits.quota_bytes if limits.quota_bytes is not None else 0
    return Shortage(over, on_disk + limits.keep_free_bytes - free if on_disk else 0)


def to_remove(entries: Sequence[Entry], lack: Shortage) -> tuple[Entry, ...] | None:
    """Of `entries` that nobody uses, the longest unused that end the shortage; None when all of
    them would not: then nothing should go."""
    chosen = []
    for entry in sorted(entries, key=lambda one: (one.last_use, one.folder)):
        if lack.none:
            break
        left = lack.without(entry)
        if max(left.quota, 0) < max(lack.quota, 0) or max(left.disk, 0) < max(lack.disk, 0):
            chosen.append(entry)
            lack = left
    return tuple(chosen) if lack.none else None
