"""What lies in one root of a store, by name. Looks only; the store writes.

ROOT/stages/DIGEST/         manifest.json and the stage's files
ROOT/outlines/DIGEST/       stages whose weights lie in a whole model on this PC
ROOT/partial/DIGEST[.N]/    stages with holes, and a journal of the pieces that are there
ROOT/scratch/               what is being made or removed
ROOT/use/DIGEST.lock        held while the stage is in use; its time is that of the last use
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from meshinfer.core.ids import Digest
from meshinfer.core.model import StageManifest
from meshinfer.errors import ShardCorrupt
from meshinfer.weights.manifest import MANIFEST_FILE, is_digest
from meshinfer.weights.outline import Outline, read_outline
from meshinfer.weights.stage_files import read_manifest


@dataclass(frozen=True, slots=True)
class StoreFolder:
    root: Path

    @property
    def stages(self) -> Path:
        return self.root / "stages"

    @property
    def outlines(self) -> Path:
        return self.root / "outlines"

    @property
    def partials(self) -> Path:
        return self.root / "partial"

    @property
    def scratch(self) -> Path:
        return self.root / "scratch"

    @property
    def use(self) -> Path:
        return self.root / "use"

    def stage(self, digest: Digest) -> Path | None:
        """A published stage's folder, None when it is not here."""
        folder = self.stages / digest
        return folder if is_digest(digest) and folder.is_dir() else None

    def published(self) -> list[Digest]:
        return [Digest(path.name) for path in folders(self.stages) if is_digest(path.name)]

    def outlined(self) -> list[Digest]:
        return [Digest(path.name) for path in folders(self.outlines) if is_digest(path.name)]

    def manifest(self, digest: Digest) -> StageManifest | None:
        """Of a published stage; None when there is none that can be read."""
        folder = self.stage(digest)
        if folder is None:
            return None
        try:
            found = read_manifest(folder)
        except ShardCorrupt:
            return None
        return found if found.digest == digest else None

    def outline(self, digest: Digest) -> Outline | None:
        """None when there is none, or the model that it was cut from is gone or was altered."""
        folder = self.outlines / digest
        if not is_digest(digest) or not folder.is_dir():
            return None
        try:
            found = read_outline(folder)
        except ShardCorrupt:
            return None
        return found if found.manifest.digest == digest and found.usable else None

    def outdated(self) -> Iterator[Path]:
        """Stages, whole and partial, in the format that had no name."""
        for folder in (*folders(self.stages), *folders(self.partials)):
            if is_digest(folder.name.partition(".")[0]) and _has_no_format(folder):
                yield folder


def folders(path: Path) -> list[Path]:
    """The folders in `path`, by name; none when it is not there."""
    try:
        return sorted(entry for entry in path.iterdir() if entry.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _has_no_format(folder: Path) -> bool:
    try:
        content = json.loads((folder / MANIFEST_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and "files" in content and "format" not in content
