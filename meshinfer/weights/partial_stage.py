"""A stage that is being fetched: pieces go in, in any order, from any thread; the whole comes out.

Made by the store, filled by the transfer. A piece counts once it has its digest, is in its place
and stands in the journal. What the journal says is checked again when the folder is opened: a power
cut may have kept the line and lost the bytes. When the disk is full, nothing of the stage stays.
"""

from __future__ import annotations

import hashlib
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from types import TracebackType

from meshinfer.core.ids import Digest
from meshinfer.core.model import StageManifest
from meshinfer.errors import DiskFull, ShardCorrupt
from meshinfer.weights.disk import copy_range, disk_errors, write_all, write_whole
from meshinfer.weights.lock import FileLock
from meshinfer.weights.manifest import PieceLocation, Placement, placements
from meshinfer.weights.piece_bytes import piece_digest
from meshinfer.weights.piece_map import PieceMap
from meshinfer.weights.room_keeper import RoomKeeper
from meshinfer.weights.stage_files import (
    JOURNAL_FILE,
    is_whole,
    journalled,
    publish_folder,
    right_pieces,
    write_manifest,
)

Bytes = bytes | bytearray | memoryview


class PartialStage:
    """Use as a context manager, or `close()`: the folder stays for the next time, its lock goes.

    `pieces` is told of every piece that is in place, so that it can be served on.
    """

    def __init__(
        self,
        folder: Path,
        final: Path,
        manifest: StageManifest,
        lock: FileLock,
        pieces: PieceMap,
        room: RoomKeeper,
    ) -> None:
        self.manifest = manifest
        self._folder = folder
        self._final = final
        self._lock = lock
        self._pieces = pieces
        self._room = room
        self._spoilt = False  # the disk was full: nothing of it stays
        self._guard = threading.Lock()
        self._files: dict[str, FileIO] = {}
        self._journal: FileIO | None = None
        self._places: dict[Digest, list[Placement]] = {}
        for place in placements(manifest):
            self._places.setdefault(place.digest, []).append(place)
        self._present: set[Digest] = set()

    def open(self) -> PartialStage:
        """Find what an earlier attempt left. Raises DiskFull when the rest does not fit: then what
        that attempt left is there still."""
        is_new = not self._folder.exists()
        self._pieces.forget_partial(self._folder)
        try:
            with disk_errors(self._folder):
                self._folder.mkdir(parents=True, exist_ok=True)
                self._present = right_pieces(self._folder, self.manifest, journalled(self._folder))
                self._claim()
        except DiskFull:
            self._spoilt = is_new
            raise
        for digest in self._present:
            self._tell(digest)
        return self

    def _claim(self) -> None:
        """Files of the right size, with holes where the file system can."""
        missing = self.total_bytes - self.done_bytes
        with self._room.claim(self.total_bytes, missing, self._folder):
            write_manifest(self._folder, self.manifest)
            for file in self.manifest.files:
                path = self._folder / file.name
                if path.is_symlink():
                    path.unlink()
                with path.open("ab") as opened:
                    opened.truncate(file.size)
            lines = "".join(f"{digest}\n" for digest in sorted(self._present))
            write_whole(self._folder / JOURNAL_FILE, lines.encode("ascii"))
            self._journal = FileIO(self._folder / JOURNAL_FILE, "ab")

    def __enter__(self) -> PartialStage:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def missing(self) -> tuple[Digest, ...]:
        """Pieces that are not here yet, in the order of the files, without doubles."""
        with self._guard:
            return tuple(digest for digest in self._places if digest not in self._present)

    @property
    def total_bytes(self) -> int:
        return self.manifest.size

    @property
    def done_bytes(self) -> int:
        with self._guard:
            return sum(self._length(digest) for digest in self._present)

    def write(self, digest: Digest, data: Bytes) -> int:
        """Keep a piece. Returns how many bytes of the stage it fills: 0 when it was here already.

        Raises ShardCorrupt (not these bytes, or no piece of this stage), DiskFull.
        """
        places = self._belonging(digest, memoryview(data).nbytes)
        if piece_digest(data).hex() != digest:
            raise ShardCorrupt(f"The bytes of piece {digest[:12]} do not have its digest.")
        with self._writing():
            if digest in self._present:
                return 0
            for place in places:
                file = self._opened(place)
                file.seek(place.offset)
                write_all(file, data)
            self._note(digest)
        return self._length(digest)

    def copy(self, digest: Digest, source: PieceLocation) -> int:
        """`write` of a piece that lies on this PC. Raises also OSError, EOFError: it cannot be read
        there."""
        places = self._belonging(digest, source.length)
        with source.path.open("rb", buffering=0) as origin, self._writing():
            if digest in self._present:
                return 0
            for place in places:
                file = self._opened(place)
                copy_range(origin, source.offset, file, place.offset, place.length)
                file.seek(place.offset)
                if hashlib.sha256(_read(file, place.length)).hexdigest() != digest:
                    raise ShardCorrupt(f"The bytes of piece {digest[:12]} do not have its digest.")
            self._note(digest)
        return self._length(digest)

    def publish(self) -> Path:
        """Move the whole stage to its final place. Raises ShardCorrupt when something is missing or
        the files are not what the manifest says."""
        if self.missing:
            raise ShardCorrupt(f"{len(self.missing)} pieces of the stage are not here yet.")
        self._close_files()
        with disk_errors(self._folder):
            if not is_whole(self._folder, self.manifest):
                raise ShardCorrupt(
                    "Pieces of the stage changed on the disk after they were written.",
                    "They will be fetched again; if it happens again, have the disk checked.",
                )
            publish_folder(self._folder, self._final)
        self.close()
        return self._final

    def close(self) -> None:
        """Idempotent. What is here stays here, unless the disk was full."""
        self._close_files()
        if self._spoilt:
            self._spoilt = False
            shutil.rmtree(self._folder, ignore_errors=True)
        self._lock.release()

    def _length(self, digest: Digest) -> int:
        return sum(place.length for place in self._places[digest])

    def _belonging(self, digest: Digest, length: int) -> list[Placement]:
        places = self._places.get(digest)
        if places is None or length != places[0].length:
            raise ShardCorrupt(f"A piece {digest[:12]} of {length} bytes does not belong here.")
        return places

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._guard:
            assert self._journal is not None, "the partial stage is closed"
            try:
                with disk_errors(self._folder):
                    yield
            except DiskFull:
                self._spoilt = True
                raise

    def _opened(self, place: Placement) -> FileIO:
        file = self._files.get(place.file)
        if file is None:
            file = FileIO(self._folder / place.file, "r+b")
            self._files[place.file] = file
        return file

    def _note(self, digest: Digest) -> None:
        """Only after the bytes: a line without its bytes would be found out, but cost a check."""
        assert self._journal is not None
        self._journal.write(f"{digest}\n".encode("ascii"))
        self._present.add(digest)
        self._tell(digest)

    def _tell(self, digest: Digest) -> None:
        for place in self._places[digest]:
            self._pieces.keep_partial(self.manifest.digest, self._folder, place)

    def _close_files(self) -> None:
        with self._guard:
            for file in self._files.values():
                file.close()
            self._files.clear()
            if self._journal is not None:
                self._journal.close()
                self._journal = None


def _read(file: FileIO, length: int) -> bytes:
    """An unbuffered read may give less than all at once."""
    parts = []
    while length and (data := file.read(length)):
        parts.append(data)
        length -= len(data)
    return b"".join(parts)
