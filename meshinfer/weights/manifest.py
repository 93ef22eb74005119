"""What a stage consists of: built from files, checked when it comes from elsewhere.

The digest of a manifest is the SHA-256 of its canonical JSON, so equal stages have equal names on
every PC. Called by the split, the store and the transfer.

Format 2 has segments; manifests of format 1 (a file was one row of pieces) are refused.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from meshinfer.core.ids import Digest, ModelId
from meshinfer.core.model import (
    PIECE_BYTES,
    StageManifest,
    StoredFile,
    UnitRange,
    piece_count,
)
from meshinfer.errors import ShardCorrupt
from meshinfer.weights.piece_bytes import fill, piece_digest
from meshinfer.weights.plain_name import objection

MANIFEST_FILE = "manifest.json"
FORMAT = 2
MAX_SEGMENTS = 32_768
"""Of a file, and what an array of a message may hold: large constants of one stage."""

MAX_PIECES = 65_536
"""Of a manifest: 64 GiB, whose digests are 2 MiB and fit a message of 4."""

_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
_DIGEST_BYTES = 32
_MAX_FILES = 64
_NO_DIGEST = Digest("")


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one piece lies in a stage."""

    digest: Digest
    file: str
    offset: int  # bytes
    length: int  # bytes


@dataclass(frozen=True, slots=True)
class PieceLocation:
    """Where the bytes of a piece lie on this PC, in a stage of the store or in a whole model.
    Whoever reads them compares their digest."""

    path: Path
    offset: int  # bytes
    length: int  # bytes


def describe_file(path: Path, segments: Sequence[int] | None = None) -> StoredFile:
    """Sizes and digests, in one pass over the file. Without `segments` it is one. Blocks. Raises
    ShardCorrupt when the file is shorter than its segments."""
    sizes = tuple(segments if segments is not None else filter(None, [path.stat().st_size]))
    digests = []
    buffer = memoryview(bytearray(min(PIECE_BYTES, max(sizes, default=0))))
    with path.open("rb", buffering=0) as file:
        for _, length in rows(sizes):
            piece = buffer[:length]
            if not fill(file, piece):
                raise ShardCorrupt(f"{path.name} changed while it was read.")
            digests.append(piece_digest(piece))
    return StoredFile(path.name, sizes, b"".join(digests))


def describe_bytes(name: str, data: bytes, segments: Sequence[int] | None = None) -> StoredFile:
    """`describe_file` of what is not on the disk yet."""
    sizes = tuple(segments if segments is not None else filter(None, [len(data)]))
    digests = [
        hashlib.sha256(data[start : start + length]).digest() for start, length in rows(sizes)
    ]
    return StoredFile(name, sizes, b"".join(digests))


def rows(segments: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(offset, length) in bytes of every piece of a file with these segments, in order."""
    start = 0
    for size in segments:
        for inner in range(0, size, PIECE_BYTES):
            yield start + inner, min(PIECE_BYTES, size - inner)
        start += size


def build_manifest(
    model: ModelId,
    model_digest: Digest,
    units: UnitRange,
    openvino: str,
    files: Sequence[StoredFile],
) -> StageManifest:
    """Files are ordered by name, so that their order on a disk does not matter."""
    ordered = tuple(sorted(files, key=lambda file: file.name))
    manifest = StageManifest(model, model_digest, units, openvino, ordered, _NO_DIGEST)
    return replace(manifest, digest=digest_of(manifest))


def digest_of(manifest: StageManifest) -> Digest:
    """The digest that a manifest with these contents has; its own is not looked at."""
    content = manifest_to_json(manifest)
    del content["digest"]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return Digest(hashlib.sha256(text.encode()).hexdigest())


def check_manifest(manifest: StageManifest) -> None:
    """Raises ShardCorrupt unless names, sizes, counts and digests are what they must be. Nothing of
    a manifest may be used as a path or size before this."""
    for file in manifest.files:
        why = _file_objection(file)
        if why is not None:
            raise ShardCorrupt(f"The stage's file {file.name[:60]!r} is refused: {why}.")
    if sum(len(file.digests) for file in manifest.files) > MAX_PIECES * _DIGEST_BYTES:
        raise ShardCorrupt(f"The stage has more than {MAX_PIECES} pieces.")
    names = [file.name.casefold() for file in manifest.files]
    if not 0 < len(names) <= _MAX_FILES or len(set(names)) != len(names):
        raise ShardCorrupt("The stage has no files, too many, or two of one name.")
    if MANIFEST_FILE in names:
        raise ShardCorrupt(f"The stage has a file named {MANIFEST_FILE}, which the store writes.")
    lengths: dict[Digest, int] = {}
    if any(
        lengths.setdefault(one.digest, one.length) != one.length for one in placements(manifest)
    ):
        raise ShardCorrupt("The stage's manifest gives one piece two lengths.")
    if not _DIGEST.fullmatch(manifest.digest) or digest_of(manifest) != manifest.digest:
        raise ShardCorrupt("The stage's manifest does not have the digest that it names.")


def _file_objection(file: StoredFile) -> str | None:
    why = objection(file.name)
    if why is not None:
        return why
    if len(file.segments) > MAX_SEGMENTS:
        return f"it has {len(file.segments)} segments, over {MAX_SEGMENTS}"
    if any(size <= 0 for size in file.segments):
        return "a segment is empty"
    if len(file.digests) != piece_count(file.segments) * _DIGEST_BYTES:
        return f"{len(file.digests)} bytes of digests do not cover {file.size} bytes"
    return None


def placements(manifest: StageManifest) -> Iterator[Placement]:
    """All pieces in the order of the files. One digest may occur more than once."""
    for file in manifest.files:
        for digest, (offset, length) in zip(file.pieces, rows(file.segments), strict=True):
            yield Placement(digest, file.name, offset, length)


def manifest_to_json(manifest: StageManifest) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "model": manifest.model,
        "model_digest": manifest.model_digest,
        "units": [manifest.units.first, manifest.units.end],
        "openvino": manifest.openvino,
        "files": [
            {"name": one.name, "segments": list(one.segments), "digests": one.digests.hex()}
            for one in manifest.files
        ],
        "digest": manifest.digest,
    }


def manifest_from_json(text: str) -> StageManifest:
    """Checked. Raises ShardCorrupt, also for a manifest of another format."""
    try:
        content = json.loads(text)
        if content["format"] != FORMAT:
            raise ShardCorrupt("A stage was stored by another version of meshinfer.")
        files = tuple(
            StoredFile(
                str(one["name"]),
                tuple(int(size) for size in one["segments"]),
                bytes.fromhex(str(one["digests"])),
            )
            for one in content["files"]
        )
        manifest = StageManifest(
            ModelId(str(content["model"])),
            Digest(str(content["model_digest"])),
            UnitRange(*map(int, content["units"])),
            str(content["openvino"]),
            files,
            Digest(str(content["digest"])),
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ShardCorrupt("A stage's manifest cannot be read.") from error
    check_manifest(manifest)
    return manifest


def is_digest(text: str) -> bool:
    """Whether `text` may be used as the name of a stage or piece."""
    return _DIGEST.fullmatch(text) is not None
