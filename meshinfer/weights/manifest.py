"""What a stage consists of: built from files, checked when it comes from elsewhere.

The digest of a manifest is the SHA-256 of its canonical JSON, so equal stages have equal names on
every PC. Called by the split, the store and the transfer.
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
from meshinfer.core.model import PIECE_BYTES, StageManifest, StoredFile, UnitRange
from meshinfer.errors import ShardCorrupt
from meshinfer.weights.plain_name import objection

MANIFEST_FILE = "manifest.json"
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
_MAX_FILES = 64
_NO_DIGEST = Digest("")


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one piece lies in a stage."""

    digest: Digest
    file: str
    offset: int  # bytes
    length: int  # bytes


def describe_file(path: Path) -> StoredFile:
    """Size and digests, in one pass over the file. Blocks."""
    whole, pieces, size = hashlib.sha256(), [], 0
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            whole.update(piece)
            pieces.append(Digest(hashlib.sha256(piece).hexdigest()))
            size += len(piece)
    return StoredFile(path.name, size, Digest(whole.hexdigest()), tuple(pieces))


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
    names = [file.name.casefold() for file in manifest.files]
    if not 0 < len(names) <= _MAX_FILES or len(set(names)) != len(names):
        raise ShardCorrupt("The stage has no files, too many, or two of one name.")
    if MANIFEST_FILE in names:
        raise ShardCorrupt(f"The stage has a file named {MANIFEST_FILE}, which the store writes.")
    if not _DIGEST.fullmatch(manifest.digest) or digest_of(manifest) != manifest.digest:
        raise ShardCorrupt("The stage's manifest does not have the digest that it names.")


def _file_objection(file: StoredFile) -> str | None:
    why = objection(file.name)
    if why is not None:
        return why
    if file.size < 0 or len(file.pieces) != -(-file.size // PIECE_BYTES):
        return f"{len(file.pieces)} pieces do not make {file.size} bytes"
    if not all(_DIGEST.fullmatch(digest) for digest in (file.digest, *file.pieces)):
        return "a digest is no SHA-256"
    return None


def placements(manifest: StageManifest) -> Iterator[Placement]:
    """All pieces in the order of the files. One digest may occur more than once."""
    for file in manifest.files:
        for number, digest in enumerate(file.pieces):
            offset = number * PIECE_BYTES
            yield Placement(digest, file.name, offset, min(PIECE_BYTES, file.size - offset))


def manifest_to_json(manifest: StageManifest) -> dict[str, Any]:
    return {
        "model": manifest.model,
        "model_digest": manifest.model_digest,
        "units": [manifest.units.first, manifest.units.end],
        "openvino": manifest.openvino,
        "files": [
            {"name": one.name, "size": one.size, "digest": one.digest, "pieces": list(one.pieces)}
            for one in manifest.files
        ],
        "digest": manifest.digest,
    }


def manifest_from_json(text: str) -> StageManifest:
    """Checked. Raises ShardCorrupt."""
    try:
        content = json.loads(text)
        files = tuple(
            StoredFile(
                str(one["name"]),
                int(one["size"]),
                Digest(str(one["digest"])),
                tuple(Digest(str(piece)) for piece in one["pieces"]),
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
    except (ValueError, KeyError, TypeError) as error:
        raise ShardCorrupt("A stage's manifest cannot be read.") from error
    check_manifest(manifest)
    return manifest


def is_digest(text: str) -> bool:
    """Whether `text` may be used as the name of a stage or piece."""
    return _DIGEST.fullmatch(text) is not None
