"""A stage that is being fetched: pieces go in, in any order, from any thread; the whole comes out.

Made by the store, filled by the transfer. A piece counts once it has its digest, is in its place
and stands in the journal. What the journal says is checked again when the folder is opened: a power
cut may have kept the line and lost the bytes.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from meshinfer.core.ids import Digest
from meshinfer.core.model import StageManifest
from meshinfer.errors import ShardCorrupt
from meshinfer.weights.disk import disk_errors, require_room, write_whole
from meshinfer.weights.lock import FileLock
from meshinfer.weights.manifest import Placement, is_digest, placements
from meshinfer.weights.stage_files import (
    JOURNAL_FILE,
    is_plain_file,
    is_whole,
    publish_folder,
    right_pieces,
    write_manifest,
)

Bytes = bytes | bytearray | memoryview


class PartialStage:
    """Use as a context manager, or `close()`: the folder stays for the next time, its lock goes.

    `kept` is told of every piece that is in place, so that it can be served on.
    """

    def __init__(
        self,
        folder: Path,
        final: Path,
        manifest: StageManifest,
        lock: FileLock,
        kept: Callable[[Path, Placement], None],
    ) -> None:
        self.manifest = manifest
        self._folder = folder
        self._final = final
        self._lock = lock
        self._kept = kept
        self._guard = threading.Lock()
        self._files: dict[str, BinaryIO] = {}
        self._journal: BinaryIO | None = None
        self._places: dict[Digest, list[Placement]] = {}
        for place in placements(manifest):
            self._places.setdefault(place.digest, []).append(place)
        self._present: set[Digest] = set()

    def open(self) -> PartialStage:
        """Find what an earlier attempt left. Raises DiskFull when the rest does not fit."""
        with disk_errors(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            noted = self._journalled()
            self._present = right_pieces(self._folder, self.manifest, noted)
            require_room(self._folder, self.total_bytes - self.done_bytes)
            write_manifest(self._folder, self.manifest)
            for file in self.manifest.files:
                path = self._folder / file.name
                if path.is_symlink():
                    path.unlink()
                with path.open("ab") as opened:
                    opened.truncate(file.size)  # a hole where the file system can
            lines = "".join(f"{digest}\n" for digest in sorted(self._present))
            write_whole(self._folder / JOURNAL_FILE, lines.encode("ascii"))
            self._journal = (self._folder / JOURNAL_FILE).open("ab", buffering=0)
        for digest in self._present:
            self._tell(digest)
        return self

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
        places = self._places.get(digest)
        if places is None or memoryview(data).nbytes != places[0].length:
            raise ShardCorrupt(f"A piece {digest[:12]} of {len(data)} bytes does not belong here.")
        if hashlib.sha256(data).hexdigest() != digest:
            raise ShardCorrupt(f"The bytes of piece {digest[:12]} do not have its digest.")
        with self._guard, disk_errors(self._folder):
            assert self._journal is not None, "the partial stage is closed"
            if digest in self._present:
                return 0
            for place in places:
                self._put(place, data)
            self._note(digest)
            self._present.add(digest)
        return self._length(digest)

    def publish(self) -> Path:
        """Move the whole stage to its final place. Raises ShardCorrupt when something is missing or
        the files are not what the manifest says."""
        if self.missing:
            raise ShardCorrupt(f"{len(self.missing)} pieces of the stage are not here yet.")
        self._close_files()
        with disk_errors(self._folder):
            if not is_whole(self._folder, self.manifest):
                raise self._not_whole()
            publish_folder(self._folder, self._final)
        self.close()
        return self._final

    def _not_whole(self) -> ShardCorrupt:
        if right_pieces(self._folder, self.manifest) != self._present:
            return ShardCorrupt(
                "Pieces of the stage changed on the disk after they were written.",
                "They will be fetched again; if it happens again, have the disk checked.",
            )
        return ShardCorrupt(
            "The pieces are right, but the joined files are not those of the manifest.",
            "Have the leader split the model again.",
        )

    def close(self) -> None:
        """Idempotent. What is here stays here."""
        self._close_files()
        self._lock.release()

    def _journalled(self) -> set[Digest] | None:
        """None without a journal: what lies in the folder then is a stage that was altered, and
        all of it is looked at."""
        path = self._folder / JOURNAL_FILE
        if not is_plain_file(path):
            return None
        lines = path.read_text(encoding="ascii", errors="replace").split("\n")
        return {Digest(line) for line in lines if is_digest(line)}

    def _length(self, digest: Digest) -> int:
        return sum(place.length for place in self._places[digest])

    def _put(self, place: Placement, data: Bytes) -> None:
        file = self._files.get(place.file)
        if file is None:
            file = (self._folder / place.file).open("r+b", buffering=0)
            self._files[place.file] = file
        file.seek(place.offset)
        rest = memoryview(data)
        while rest:  # an unbuffered write may take less than all
            rest = rest[file.write(rest) :]

    def _note(self, digest: Digest) -> None:
        """Only after the bytes: a line without its bytes would be found out, but cost a check."""
        assert self._journal is not None
        self._journal.write(f"{digest}\n".encode("ascii"))
        self._tell(digest)

    def _tell(self, digest: Digest) -> None:
        for place in self._places[digest]:
            self._kept(self._folder, place)

    def _close_files(self) -> None:
        with self._guard:
            for file in self._files.values():
                file.close()
            self._files.clear()
            if self._journal is not None:
                self._journal.close()
                self._journal = None
