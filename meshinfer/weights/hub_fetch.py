"""A model of the Hugging Face Hub in a folder of ours: only the files that are needed, each
resumed where it was cut and checked against the repository's digests.

A HubSource enters, the Checkpoint on this PC and its commit leave. Called by `prepare`.

What the hub's own cache has already is linked, not fetched again. The rest comes by plain HTTP
into the folder: the library starts a file over whenever a process ended in the middle of it, and a
shard may have many gigabytes.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from meshinfer.core.ids import Digest
from meshinfer.errors import ModelNotFound, ShardCorrupt
from meshinfer.weights.checkpoint import Checkpoint
from meshinfer.weights.disk import disk_errors, file_digest, require_room
from meshinfer.weights.download import Check, Download, Origin
from meshinfer.weights.hub import Hub, Listing, not_complete
from meshinfer.weights.hub_errors import gated_remedy, network_remedy
from meshinfer.weights.progress import Progress, Tell
from meshinfer.weights.selection import PART_OF_GGUF, Kind, SourceFile, choose
from meshinfer.weights.source import HubSource

GGUF_NAME = "model.gguf"
"""What a GGUF is called in our folder: its own name may be one that a system refuses. Parts keep
the numbers by which they are found."""


THE_HUB = Hub()


@dataclass(frozen=True, slots=True)
class Fetched:
    checkpoint: Checkpoint
    commit: str


def fetch(
    source: HubSource,
    folder: Path,
    progress: Tell,
    export: bool = False,
    allow: Callable[[Kind], None] = lambda kind: None,
    digest: str = "",
    hub: Hub = THE_HUB,
) -> Fetched:
    """Have the files of `source` in `folder`. Blocks. A later call goes on where this one ended.

    `allow` may refuse the kind before anything is fetched; `digest` is that of the largest file,
    where the catalogue knows it. Raises what the listing and the selection raise, DiskFull,
    TimedOut, ShardCorrupt (wrong digests).
    """
    progress(Progress("ask the hub", 0, 0))
    listing = hub.listing(source.repository, source.revision)
    try:
        chosen = choose(listing.files, source.file, export)
    except ModelNotFound:
        if listing.from_cache and not hub.is_offline:
            raise not_complete(listing, "The model") from None
        raise
    allow(chosen.kind)
    _compare(digest, chosen.files)
    targets = {file: folder / _name_here(chosen.kind, file.name) for file in chosen.files}
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        _forget_others(folder, targets.values())
    _Fetch(hub, listing, progress).run(targets)
    files = tuple(
        SourceFile(path.name, one.size, one.sha256, one.git_blob) for one, path in targets.items()
    )
    path = folder / files[0].name if chosen.kind is Kind.GGUF else folder
    return Fetched(Checkpoint(chosen.kind, path, files), listing.commit)


def _name_here(kind: Kind, name: str) -> str:
    if kind is not Kind.GGUF:
        return name  # one of those that `selection` knows
    part = PART_OF_GGUF.search(name)
    return f"model{part[0]}" if part is not None else GGUF_NAME


class _Fetch:
    """The files of one listing, one after the other."""

    def __init__(self, hub: Hub, listing: Listing, progress: Tell) -> None:
        self._hub = hub
        self._listing = listing
        self._progress = progress
        self._total = 0
        self._done = 0

    def run(self, targets: dict[SourceFile, Path]) -> None:
        self._total = sum(file.size for file in targets)
        here = {file for file, target in targets.items() if self._is_here(file, target)}
        missing = [file for file in targets if file not in here]
        self._require_room(missing, targets)
        origin = _origin(self._hub, self._listing)
        self._done = sum(file.size for file in here)
        for file in missing:
            self._progress(Progress("download", self._done, self._total))
            self._get(file, targets[file], origin)
            self._done += file.size
        self._progress(Progress("download", self._total, self._total))

    def _is_here(self, file: SourceFile, target: Path) -> bool:
        """Fetched before, or linked now from the hub's cache. A spoilt copy is not used."""
        if target.is_file() and target.stat().st_size == file.size and self._is_right(file, target):
            return True
        target.unlink(missing_ok=True)
        cached = self._hub.cached(self._listing, file.name)
        if cached is None or cached.stat().st_size != file.size:
            return False
        if not self._is_right(file, cached):
            return False
        link_or_copy(cached, target)
        return True

    def _is_right(self, file: SourceFile, path: Path) -> bool:
        self._progress(Progress("check", 0, file.size))
        return _check_of(file)(path)

    def _require_room(self, missing: list[SourceFile], targets: dict[SourceFile, Path]) -> None:
        parts = [target.with_name(f"{target.name}.part") for target in targets.values()]
        waiting = sum(part.stat().st_size for part in parts if part.is_file())
        needed = sum(file.size for file in missing) - waiting
        require_room(next(iter(targets.values())).parent, max(0, needed))

    def _get(self, file: SourceFile, target: Path, origin: Origin) -> None:
        if self._listing.from_cache or self._hub.is_offline:
            raise not_complete(self._listing, file.name)
        done = self._done

        def told(bytes_here: int) -> None:
            self._progress(Progress("download", done + bytes_here, self._total))

        if file.size > self._hub.most_http_bytes:
            self._get_large(file, target, told)
            return
        url = self._hub.url(self._listing, file.name)
        right, persistence = _check_of(file), self._hub.persistence
        Download(url, right, file.size, told, persistence, origin=origin).run(target)

    def _get_large(self, file: SourceFile, target: Path, told: Callable[[int], None]) -> None:
        cached = self._hub.download(self._listing, file.name, told)
        if not self._is_right(file, cached):
            raise ShardCorrupt(
                f"{file.name} does not have the digest that {self._listing.repository} promises.",
                "Remove it from the hub's cache with `hf cache`, then pull again.",
            )
        link_or_copy(cached, target)


def _origin(hub: Hub, listing: Listing) -> Origin:
    return Origin(
        promise=f"{listing.repository} promises",
        unreachable=network_remedy(),
        refused=gated_remedy(listing.repository),
        secret_headers=hub.secret_headers(),
    )


def _check_of(file: SourceFile) -> Check:
    """By SHA-256 (LFS), else as git names the file, else by its size alone."""
    if file.sha256:
        return lambda path: file_digest(path) == Digest(file.sha256)
    if file.git_blob:
        return lambda path: git_blob(path) == file.git_blob
    return lambda path: path.stat().st_size == file.size


def git_blob(path: Path) -> str:
    """What git calls a file of these bytes: SHA-1 of a header and the data."""
    data = path.read_bytes()  # files outside LFS are small: the hub takes up to 10 MB
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def link_or_copy(source: Path, target: Path) -> None:
    """A hard link, so that nothing takes room twice and the cache may be emptied; on another disk
    a copy. Never a symbolic link. Raises DiskFull."""
    real = source.resolve()
    try:
        os.link(real, target)
    except OSError:
        with disk_errors(target.parent):
            require_room(target.parent, real.stat().st_size)
            scratch = target.with_name(f"{target.name}.part")
            shutil.copyfile(real, scratch)
            scratch.replace(target)


def _forget_others(folder: Path, targets: Iterable[Path]) -> None:
    """Files of another choice. What is begun of the right ones stays, whatever commit it was of:
    the digests decide."""
    names = {target.name for target in targets}
    for path in folder.iterdir():
        if path.name.removesuffix(".part") not in names:
            path.unlink()


def _compare(digest: str, files: Iterable[SourceFile]) -> None:
    largest = max(files, key=lambda file: file.size)
    if digest and largest.sha256 and largest.sha256 != digest:
        raise ShardCorrupt(
            f"{largest.name} is not the one that the catalogue names.",
            "The repository has changed: update meshinfer, or pull it by its own name.",
        )
