"""Stages on this PC's disk. Published ones are complete and were checked; partial ones grow piece
by piece. Knows no network.

    ROOT/stages/DIGEST/         manifest.json and the stage's files
    ROOT/partial/DIGEST[.N]/    the same, with holes, and a journal of the pieces that are there
    ROOT/scratch/               stages that are being cut

A stage appears under `stages` by a rename after everything is on the disk, so that a process may be
killed at any point. Several processes and agents may share a store: partial folders are locked, and
a stage that two publish at once is simply published. Everything here blocks; none of it belongs on
an event loop. Called by the split, the transfer and the node.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from uuid import uuid4

from meshinfer.core.ids import Digest
from meshinfer.core.model import StageManifest, UnitRange
from meshinfer.errors import ShardCorrupt
from meshinfer.weights.disk import disk_errors, sync_folder
from meshinfer.weights.lock import FileLock
from meshinfer.weights.manifest import Placement, check_manifest, is_digest, placements
from meshinfer.weights.partial_stage import PartialStage
from meshinfer.weights.stage_files import (
    is_plain_file,
    is_whole,
    publish_folder,
    read_manifest,
    write_manifest,
)


@dataclass(frozen=True, slots=True)
class PieceLocation:
    """Where the bytes of a piece lie. Whoever reads them compares the digest."""

    path: Path
    offset: int
    length: int


class Store:
    """Safe for several threads. The folders are made when they are first needed."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._stages = root / "stages"
        self._partials = root / "partial"
        self._scratch = root / "scratch"
        self._guard = threading.Lock()
        self._indexed: set[str] = set()  # names of the stages whose pieces are in the index
        self._index: dict[Digest, PieceLocation] = {}
        self._index_partial: dict[Digest, PieceLocation] = {}

    def stage_folder(self, digest: Digest) -> Path | None:
        """A published stage's folder, as it is on the disk now; None when it is not here."""
        folder = self._stages / digest
        return folder if is_digest(digest) and folder.is_dir() else None

    def verified_folder(self, digest: Digest) -> Path | None:
        """The folder of a published stage whose every byte is right; None when there is none (it
        is not here, or was altered: then its good pieces wait in a partial stage)."""
        try:
            return self.verify_stage(digest)
        except ShardCorrupt:
            return None

    def verify_stage(self, digest: Digest) -> Path:
        """Read and hash all of a published stage; before every load. Raises ShardCorrupt: not here,
        or altered. An altered stage is taken out of `stages`, so that it is fetched again."""
        folder = self.stage_folder(digest)
        if folder is None:
            raise ShardCorrupt(f"The stage {digest[:12]} is not on this PC.")
        try:
            manifest = read_manifest(folder)
        except ShardCorrupt:
            self._remove(folder)
            raise
        if manifest.digest == digest and is_whole(folder, manifest):
            return folder
        self._demote(folder, manifest)
        raise ShardCorrupt(
            f"The stage {digest[:12]} was altered on the disk.", "It will be fetched again."
        )

    def manifest(self, digest: Digest) -> StageManifest | None:
        """Of a published stage. None when there is none that can be read."""
        folder = self.stage_folder(digest)
        if folder is None:
            return None
        try:
            found = read_manifest(folder)
        except ShardCorrupt:
            return None
        return found if found.digest == digest else None

    def find(self, model_digest: Digest, units: UnitRange, openvino: str) -> StageManifest | None:
        """A published stage that was cut from just this."""
        for digest in self._published():
            found = self.manifest(digest)
            if found and (found.model_digest, found.units, found.openvino) == (
                model_digest,
                units,
                openvino,
            ):
                return found
        return None

    def piece(self, digest: Digest) -> PieceLocation | None:
        """Where a piece lies, in a published stage or in a partial one of this process."""
        if not is_digest(digest):
            return None
        with self._guard:
            found = self._look_up(digest)
            if found is None:
                self._refresh()
                found = self._look_up(digest)
        return found

    def _look_up(self, digest: Digest) -> PieceLocation | None:
        for index in (self._index, self._index_partial):
            found = index.get(digest)
            if found is not None and is_plain_file(found.path):
                return found
        return None

    def partial(self, manifest: StageManifest) -> PartialStage:
        """The stage as far as it is here, locked for this process until it is closed. Another
        process that fetches the same stage has its own folder. Raises ShardCorrupt (a manifest that
        breaks the rules), DiskFull."""
        check_manifest(manifest)
        self._sweep_partials()
        for number in count():
            name = manifest.digest if number == 0 else f"{manifest.digest}.{number}"
            lock = FileLock(self._partials / f"{name}.lock")
            if not lock.try_acquire():
                continue
            stage = PartialStage(
                self._partials / name,
                self._stages / manifest.digest,
                manifest,
                lock,
                self._keep_partial,
            )
            try:
                return stage.open()
            except BaseException:
                stage.close()
                raise
        raise AssertionError("unreachable: count() does not end")

    def _sweep_partials(self) -> None:
        """Remove what nobody fills any more because the stage came another way."""
        for lock_path in self._partials.glob("*.lock"):
            folder = lock_path.with_suffix("")
            if not folder.exists() or self.stage_folder(Digest(folder.name.split(".")[0])) is None:
                continue
            lock = FileLock(lock_path)
            if lock.try_acquire():
                shutil.rmtree(folder, ignore_errors=True)
                lock.release()

    def publish(self, folder: Path, manifest: StageManifest) -> Path:
        """Take a folder of just made files (from `scratch`) as a stage. Raises ShardCorrupt unless
        they are what the manifest says, DiskFull."""
        check_manifest(manifest)
        if not is_whole(folder, manifest):
            raise ShardCorrupt("The stage's files changed while they were being stored.")
        write_manifest(folder, manifest)
        with disk_errors(self._root):
            return publish_folder(folder, self._stages / manifest.digest)

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """An empty folder on the same disk, removed afterwards unless it was published. What killed
        processes left is removed too."""
        self._sweep()
        # The lock comes first: a folder without one would be nobody's.
        folder = self._scratch / f"stage-{uuid4().hex}"
        lock = FileLock(folder.with_suffix(".lock"))
        with disk_errors(self._root):
            while not lock.try_acquire():  # another process sweeps it just now
                folder = self._scratch / f"stage-{uuid4().hex}"
                lock = FileLock(folder.with_suffix(".lock"))
        try:
            with disk_errors(self._root):
                folder.mkdir()
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            lock.release()
            folder.with_suffix(".lock").unlink(missing_ok=True)

    def _sweep(self) -> None:
        for lock_path in list(self._scratch.glob("*.lock")):
            lock = FileLock(lock_path)
            if lock.try_acquire():
                shutil.rmtree(lock_path.with_suffix(""), ignore_errors=True)
                lock.release()
                lock_path.unlink(missing_ok=True)

    def _published(self) -> list[Digest]:
        try:
            entries = sorted(self._stages.iterdir())
        except FileNotFoundError:
            return []
        return [Digest(entry.name) for entry in entries if is_digest(entry.name)]

    def _refresh(self) -> None:
        """Index what another process, or this one, published; forget what is gone."""
        published = self._published()
        if self._indexed - set(published):
            self._index.clear()
            self._indexed.clear()
        for digest in published:
            if digest in self._indexed:
                continue
            manifest = self.manifest(digest)
            for place in placements(manifest) if manifest else ():
                self._index[place.digest] = _location(self._stages / digest, place)
            self._indexed.add(digest)
        gone = [key for key, one in self._index_partial.items() if not is_plain_file(one.path)]
        for key in gone:
            del self._index_partial[key]

    def _keep_partial(self, folder: Path, place: Placement) -> None:
        with self._guard:
            self._index_partial[place.digest] = _location(folder, place)

    def _demote(self, folder: Path, manifest: StageManifest) -> None:
        """An altered stage becomes a partial one that lacks only what was altered."""
        target = self._partials / manifest.digest
        lock = FileLock(target.with_name(f"{target.name}.lock"))
        if folder.name != manifest.digest or not lock.try_acquire():
            self._remove(folder)
            return
        try:
            if target.exists():
                self._remove(folder)
                return
            with contextlib.suppress(FileNotFoundError):  # another process did it
                folder.rename(target)  # without a journal every piece is looked at
        finally:
            lock.release()

    def _remove(self, folder: Path) -> None:
        """Out of sight at once, then away."""
        with self.scratch() as aside, contextlib.suppress(FileNotFoundError):
            folder.rename(aside / "stage")
            sync_folder(folder.parent)


def _location(folder: Path, place: Placement) -> PieceLocation:
    return PieceLocation(folder / place.file, place.offset, place.length)
