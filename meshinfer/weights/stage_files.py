"""A stage's files in a folder: which pieces are right, and how the folder becomes final.

Called by the store and by partial stages. Everything here blocks.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from meshinfer.core.ids import Digest
from meshinfer.core.model import StageManifest
from meshinfer.errors import ShardCorrupt
from meshinfer.weights.disk import sync_file, sync_folder, write_whole
from meshinfer.weights.manifest import (
    MANIFEST_FILE,
    Placement,
    describe_file,
    is_digest,
    manifest_from_json,
    manifest_to_json,
    placements,
)

JOURNAL_FILE = "pieces.journal"


def write_manifest(folder: Path, manifest: StageManifest) -> None:
    write_whole(folder / MANIFEST_FILE, json.dumps(manifest_to_json(manifest)).encode())


def read_manifest(folder: Path) -> StageManifest:
    """Raises ShardCorrupt: not there, not readable, or not that of the folder's name."""
    try:
        text = (folder / MANIFEST_FILE).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ShardCorrupt(f"The stage {folder.name[:12]} has no manifest.") from error
    return manifest_from_json(text)


def is_whole(folder: Path, manifest: StageManifest) -> bool:
    """Whether every file has its size and all its pieces; every byte is read once."""
    return all(
        is_plain_file(folder / file.name)
        and (folder / file.name).stat().st_size == file.size
        and _digests(folder / file.name, file.segments) == file.digests
        for file in manifest.files
    )


def right_pieces(
    folder: Path, manifest: StageManifest, among: Iterable[Digest] | None = None
) -> set[Digest]:
    """Digests of the pieces (of `among`, or all) that lie in the folder wherever they belong."""
    wanted = set(among) if among is not None else None
    right: set[Digest] = set()
    wrong: set[Digest] = set()
    for place in placements(manifest):
        if wanted is not None and place.digest not in wanted:
            continue
        (right if _is_right(folder, place) else wrong).add(place.digest)
    return right - wrong


def journalled(folder: Path) -> set[Digest] | None:
    """Pieces that a partial stage noted. None without a journal: what lies in the folder then is a
    stage that was altered, and all of it is looked at."""
    path = folder / JOURNAL_FILE
    if not is_plain_file(path):
        return None
    lines = path.read_text(encoding="ascii", errors="replace").split("\n")
    return {Digest(line) for line in lines if is_digest(line)}


def is_plain_file(path: Path) -> bool:
    """Not a link: a stage's bytes lie in its own folder."""
    return path.is_file() and not path.is_symlink()


def publish_folder(folder: Path, final: Path) -> Path:
    """Everything on the disk, then the rename. Somebody else may have been faster: their folder has
    the same digest, so ours is dropped. The journal goes last: a process that is killed before the
    rename has its pieces still."""
    for path in folder.iterdir():
        sync_file(path)
    sync_folder(folder)
    final.parent.mkdir(parents=True, exist_ok=True)
    if final.exists() and not _holds_a_stage(final):
        shutil.rmtree(final)
    try:
        folder.rename(final)
    except OSError:
        if not _holds_a_stage(final):
            raise
        shutil.rmtree(folder, ignore_errors=True)
    (final / JOURNAL_FILE).unlink(missing_ok=True)
    sync_folder(final.parent)
    return final


def _holds_a_stage(final: Path) -> bool:
    """Whether the manifest is that of the folder's name; the files are checked before a load."""
    try:
        return read_manifest(final).digest == final.name
    except ShardCorrupt:
        return False


def _is_right(folder: Path, place: Placement) -> bool:
    path = folder / place.file
    if not is_plain_file(path):
        return False
    with path.open("rb") as file:
        file.seek(place.offset)
        data = file.read(place.length)
    return hashlib.sha256(data).hexdigest() == place.digest


def _digests(path: Path, segments: Sequence[int]) -> bytes:
    """Of the file's pieces; nothing when it is shorter."""
    try:
        return describe_file(path, segments).digests
    except ShardCorrupt:
        return b""
