"""Which pieces this PC has and where: those of published stages, of outlines, and of stages that
this process fetches. Called by the store; safe for several threads.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from meshinfer.core.ids import Digest
from meshinfer.core.model import StageManifest
from meshinfer.weights.manifest import PieceLocation, Placement, is_digest, placements
from meshinfer.weights.stage_files import is_plain_file
from meshinfer.weights.store_folder import StoreFolder


@dataclass(frozen=True, slots=True)
class Found:
    """`stage` is the stage that the piece was found in."""

    stage: Digest
    place: PieceLocation


@dataclass(frozen=True, slots=True)
class _Folder:
    """A stage or an outline; one that was made anew is another."""

    root: StoreFolder
    path: Path
    stage: Digest
    changed: int  # nanoseconds since 1970

    def pieces(self) -> Iterator[tuple[Digest, PieceLocation]]:
        if self.path.parent == self.root.stages:
            manifest = self.root.manifest(self.stage)
            if manifest is not None:
                yield from pieces_in(self.path, manifest)
            return
        outline = self.root.outline(self.stage)
        if outline is not None:
            yield from outline.locations(self.path)


class PieceMap:
    """What other processes publish or remove is noticed when a piece is not where it should be."""

    def __init__(self, roots: Sequence[StoreFolder]) -> None:
        self._roots = roots
        self._guard = threading.Lock()
        self._read: set[_Folder] = set()  # stages and outlines that are in `_lasting`
        self._lasting: dict[Digest, Found] = {}
        self._partial: dict[Digest, Found] = {}

    def find(self, digest: Digest) -> Found | None:
        """Whoever reads the bytes compares the digest."""
        if not is_digest(digest):
            return None
        with self._guard:
            found = self._look_up(digest)
            if found is None:
                self._refresh()
                found = self._look_up(digest)
        return found

    def find_all(self, digests: Iterable[Digest]) -> dict[Digest, PieceLocation]:
        """Those that are here, with one look at the disk."""
        with self._guard:
            self._refresh()
            found = {digest: self._look_up(digest) for digest in digests}
        return {digest: one.place for digest, one in found.items() if one is not None}

    def keep_partial(self, stage: Digest, folder: Path, place: Placement) -> None:
        """A piece was put into a partial stage."""
        with self._guard:
            self._partial[place.digest] = Found(stage, _location(folder, place))

    def forget_partial(self, folder: Path) -> None:
        """What was known of a partial stage, which is opened anew: a folder of the same name may
        have become a stage, been removed and begun again with holes."""
        with self._guard:
            gone = [key for key, one in self._partial.items() if one.place.path.parent == folder]
            for key in gone:
                del self._partial[key]

    def _look_up(self, digest: Digest) -> Found | None:
        for known in (self._lasting, self._partial):
            found = known.get(digest)
            if found is not None and is_plain_file(found.place.path):
                return found
        return None

    def _refresh(self) -> None:
        there = list(self._folders())
        if self._read - set(there):
            self._lasting.clear()
            self._read.clear()
        for folder in there:
            if folder not in self._read:
                for piece, place in folder.pieces():
                    self._lasting.setdefault(piece, Found(folder.stage, place))
                self._read.add(folder)
        gone = [key for key, one in self._partial.items() if not is_plain_file(one.place.path)]
        for key in gone:
            del self._partial[key]

    def _folders(self) -> Iterator[_Folder]:
        for root in self._roots:
            for parent, digests in (
                (root.stages, root.published()),
                (root.outlines, root.outlined()),
            ):
                for digest in digests:
                    with contextlib.suppress(OSError):  # it goes just now
                        changed = (parent / digest).stat().st_mtime_ns
                        yield _Folder(root, parent / digest, digest, changed)


def pieces_in(folder: Path, manifest: StageManifest) -> Iterator[tuple[Digest, PieceLocation]]:
    """Where the pieces of a stage belong in its folder."""
    for place in placements(manifest):
        yield place.digest, _location(folder, place)


def _location(folder: Path, place: Placement) -> PieceLocation:
    return PieceLocation(folder / place.file, place.offset, place.length)
