"""Small stages for tests of the store and the transfer: random bytes with a manifest."""

from __future__ import annotations

import json
import random
from pathlib import Path

from meshinfer.core.ids import Digest, ModelId
from meshinfer.core.model import PIECE_BYTES, StageManifest, UnitRange
from meshinfer.weights.manifest import build_manifest, describe_file, manifest_to_json
from meshinfer.weights.store import Store

MODEL_DIGEST = Digest("a" * 64)


def make_files(
    folder: Path, pieces: int = 3, seed: int = 0, tail: int = 1000
) -> tuple[StageManifest, dict[str, bytes]]:
    """A graph of a few bytes and weights of `pieces` pieces, the last of `tail` bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = random.Random(seed).randbytes((pieces - 1) * PIECE_BYTES + tail)
    content = {
        "openvino_model.xml": f"<net seed='{seed}'/>".encode(),
        "openvino_model.bin": weights,
    }
    for name, data in content.items():
        (folder / name).write_bytes(data)
    files = [describe_file(folder / name) for name in content]
    units = UnitRange(seed, seed + 1)
    return build_manifest(ModelId("m"), MODEL_DIGEST, units, "2026.4.1", files), content


def publish(store: Store, pieces: int = 3, seed: int = 0) -> tuple[StageManifest, dict[str, bytes]]:
    with store.scratch() as scratch:
        manifest, content = make_files(scratch, pieces, seed)
        store.publish(scratch, manifest)
    return manifest, content


def old_manifest(folder: Path) -> None:
    """As versions before the format had a number wrote it."""
    folder.mkdir(parents=True)
    manifest, _ = make_files(folder.parent.parent / "origin")
    content = manifest_to_json(manifest)
    del content["format"]
    content["files"] = [
        {"name": one.name, "size": one.size, "digest": one.digest, "pieces": list(one.pieces)}
        for one in manifest.files
    ]
    (folder / "manifest.json").write_text(json.dumps(content), encoding="utf-8")


def pieces_of(content: dict[str, bytes]) -> list[bytes]:
    return [
        data[start : start + PIECE_BYTES]
        for data in content.values()
        for start in range(0, len(data), PIECE_BYTES)
    ]


def flip(path: Path, offset: int) -> None:
    """One bit of a file changes on the disk."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))
