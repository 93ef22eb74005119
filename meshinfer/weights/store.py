"""Stages on this PC's disk. Published ones are complete and were checked; partial ones grow piece
by piece; outlines name weights that lie in a whole model. `weights.store_folder` shows the folders.
Knows no network.

A stage appears by a rename after everything is on the disk, so that a process may be killed at any
point. Several processes and agents may share a store: partial folders are locked, a stage that two
publish at once is simply published, and one that is in use is not removed. Everything here blocks;
none of it belongs on an event loop. Called by the split, the transfer and the node.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from meshinfer.core.ids import Digest
from meshinfer.core.model import StageManifest, UnitRange
from meshinfer.errors import DiskFull, ShardCorrupt
from meshinfer.weights.disk import first_write, make_folder
from meshinfer.weights.local_copy import fill
from meshinfer.weights.lock import FileLock
from meshinfer.weights.manifest import PieceLocation, check_manifest
from meshinfer.weights.partial_stage import PartialStage
from meshinfer.weights.piece_map import PieceMap
from meshinfer.weights.room import StoreLimits
from meshinfer.weights.room_keeper import RoomKeeper
from meshinfer.weights.stage_files import is_whole, publish_folder, read_manifest, write_manifest
from meshinfer.weights.stage_removal import ScratchFolders
from meshinfer.weights.stage_use import StageUse
from meshinfer.weights.store_folder import StoreFolder

__all__ = ["PieceLocation", "Store", "StoreLimits"]


class Store:
    """Safe for several threads. The folders are made when they are first needed.

    `read_only` are more roots, in which stages and pieces are found and nothing is changed; a root
    that cannot be written is used like one of them.
    """

    def __init__(
        self,
        root: Path,
        read_only: Sequence[Path] = (),
        limits: StoreLimits = StoreLimits(),  # noqa: B008 - frozen
    ) -> None:
        self._root = StoreFolder(root)
        self._roots = (self._root, *(StoreFolder(path) for path in read_only))
        self._scratch = ScratchFolders(self._root.scratch)
        self._use = StageUse(self._root.use)
        self._room = RoomKeeper(self._root, limits, self._use, self._scratch.remove)
        self._pieces = PieceMap(self._roots)

    def stage_folder(self, digest: Digest) -> Path | None:
        """A published stage's folder, as it is on the disk now; None when it is not here."""
        return next((folder for _, folder in self._published(digest)), None)

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
        why = ShardCorrupt(f"The stage {digest[:12]} is not on this PC.")
        for root, folder in list(self._published(digest)):
            self._use.touch(digest)
            with self._use.hold(digest):
                try:
                    return self._verify(digest, folder, root is self._root)
                except ShardCorrupt as error:
                    why = error
        raise why

    def manifest(self, digest: Digest) -> StageManifest | None:
        """Of a stage that is published or outlined here. None when there is none that can be
        read."""
        for root in self._roots:
            found = root.manifest(digest)
            if found is None:
                outline = root.outline(digest)
                found = outline.manifest if outline is not None else None
            if found is not None:
                return found
        return None

    def find(self, model_digest: Digest, units: UnitRange, openvino: str) -> StageManifest | None:
        """A stage that was cut from just this, published or outlined."""
        wanted = (model_digest, units, openvino)
        for root in self._roots:
            for digest in dict.fromkeys((*root.published(), *root.outlined())):
                found = self.manifest(digest)
                if found and (found.model_digest, found.units, found.openvino) == wanted:
                    self._use.touch(digest)
                    return found
        return None

    def piece(self, digest: Digest) -> PieceLocation | None:
        """Where a piece lies: in a published stage, in a partial one of this process, or in a whole
        model that a stage was cut from."""
        found = self._pieces.find(digest)
        if found is None:
            return None
        self._use.touch(found.stage)
        return found.place

    def holds(self, digests: Iterable[Digest]) -> frozenset[Digest]:
        """Which of these pieces are here, with one look at the disk."""
        return frozenset(self._pieces.find_all(digests))

    @contextmanager
    def in_use(self, digest: Digest) -> Iterator[Path]:
        """The folder of a published stage, which stays while the block lasts, whoever shares the
        store. Raises ShardCorrupt when it is not here."""
        with self._use.hold(digest):
            self._use.touch(digest)
            folder = self.stage_folder(digest)
            if folder is None:
                raise ShardCorrupt(f"The stage {digest[:12]} is not on this PC.")
            yield folder

    def partial(
        self, manifest: StageManifest, tell: Callable[[int, int], None] | None = None
    ) -> PartialStage:
        """The stage as far as its pieces are on this PC, in whatever stage or model, locked for
        this process until it is closed. `tell` hears (done, total) bytes while pieces are copied;
        what it raises ends the copying.

        Another process that fetches the same stage has its own folder. Raises ShardCorrupt (a
        manifest that breaks the rules), DiskFull.
        """
        check_manifest(manifest)
        self._clean()
        stage = self._open(manifest)
        try:
            fill(stage, self._pieces, self._root, tell)
        except BaseException:
            stage.close()
            raise
        return stage

    def assemble(self, digest: Digest, tell: Callable[[int, int], None] | None = None) -> Path:
        """The verified folder of a stage whose pieces are all on this PC: one that was split here.
        `tell` hears (done, total) bytes. Raises ShardCorrupt when some are missing or altered,
        DiskFull."""
        ready = self.verified_folder(digest)
        if ready is not None:
            return ready
        manifest = self.manifest(digest)
        if manifest is None:
            raise ShardCorrupt(f"The stage {digest[:12]} is not on this PC.")
        with self.partial(manifest, tell) as partial:
            return partial.publish()

    def publish(self, folder: Path, manifest: StageManifest) -> Path:
        """Take a folder of just made files (from `scratch`) as a stage. Raises ShardCorrupt unless
        they are what the manifest says, DiskFull."""
        check_manifest(manifest)
        if not is_whole(folder, manifest):
            raise ShardCorrupt("The stage's files changed while they were being stored.")
        write_manifest(folder, manifest)
        self._use.touch(manifest.digest)
        is_here = self._root.manifest(manifest.digest) is not None
        with self._room.claim(0 if is_here else manifest.size, 0):
            return publish_folder(folder, self._root.stages / manifest.digest)

    def publish_outline(self, folder: Path, manifest: StageManifest) -> Path:
        """Take a folder that `write_outline` filled (in `scratch`). Raises DiskFull."""
        check_manifest(manifest)
        self._use.touch(manifest.digest)
        final = self._root.outlines / manifest.digest
        if final.exists() and self._root.outline(manifest.digest) is None:
            self._scratch.remove(final)
        size = sum(path.stat().st_size for path in folder.iterdir())
        with self._room.claim(size, 0):
            return publish_folder(folder, final)

    @contextmanager
    def scratch(self, room: int = 0) -> Iterator[Path]:
        """An empty folder on the same disk with `room` bytes of space, removed afterwards unless it
        was published. What killed processes left is removed too. Raises DiskFull."""
        self._clean()
        if room:
            with self._room.claim(0, room):
                pass
        with self._scratch.new() as folder:
            yield folder

    def _verify(self, digest: Digest, folder: Path, ours: bool) -> Path:
        try:
            manifest = read_manifest(folder)
        except ShardCorrupt:
            if ours:
                self._scratch.remove(folder)
            raise
        if manifest.digest == digest and is_whole(folder, manifest):
            return folder
        if ours:
            self._demote(folder, manifest)
        raise ShardCorrupt(
            f"The stage {digest[:12]} was altered on the disk.", "It will be fetched again."
        )

    def _published(self, digest: Digest) -> Iterator[tuple[StoreFolder, Path]]:
        for root in self._roots:
            folder = root.stage(digest)
            if folder is not None:
                yield root, folder

    def _open(self, manifest: StageManifest) -> PartialStage:
        make_folder(self._root.partials)
        self._use.touch(manifest.digest)
        for number in count():
            name = manifest.digest if number == 0 else f"{manifest.digest}.{number}"
            lock = FileLock(self._root.partials / f"{name}.lock")
            with first_write(self._root.partials):
                if not lock.try_acquire():
                    continue
            folder = self._root.partials / name
            final = self._root.stages / manifest.digest
            stage = PartialStage(folder, final, manifest, lock, self._pieces, self._room)
            try:
                return stage.open()
            except BaseException:
                stage.close()
                raise
        raise AssertionError("unreachable: count() does not end")

    def _clean(self) -> None:
        """Remove what nobody can use: stages of an older format, and partial ones that nobody fills
        any more because the stage came another way."""
        for folder in list(self._root.outdated()):
            self._remove_unlocked(folder)
        for folder in list(self._root.partials.glob("*.lock")):
            stage = folder.with_suffix("")
            if stage.exists() and self._root.stage(Digest(stage.name.partition(".")[0])):
                self._remove_unlocked(stage)

    def _remove_unlocked(self, folder: Path) -> None:
        """Unless another process has it."""
        if folder.parent == self._root.stages:
            with self._use.alone(Digest(folder.name)) as idle:
                if idle:
                    self._scratch.remove(folder)
            return
        lock = FileLock(folder.with_name(f"{folder.name}.lock"))
        with contextlib.suppress(OSError):  # a store that cannot be written keeps it
            if lock.try_acquire():
                shutil.rmtree(folder, ignore_errors=True)
                lock.release()

    def _demote(self, folder: Path, manifest: StageManifest) -> None:
        """An altered stage becomes a partial one that lacks only what was altered."""
        target = self._root.partials / manifest.digest
        lock = FileLock(target.with_name(f"{target.name}.lock"))
        try:
            if folder.name != manifest.digest or not lock.try_acquire() or target.exists():
                self._scratch.remove(folder)
                return
            with contextlib.suppress(OSError):  # another process did it, or it cannot be written
                folder.rename(target)  # without a journal every piece is looked at
        except (OSError, DiskFull):  # a store that cannot be written keeps it
            return
        finally:
            lock.release()
