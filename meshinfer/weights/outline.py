"""A stage without its weights: what is its own, and where the rest lies in the whole model.

    OUTLINE/manifest.json          of the stage
    OUTLINE/openvino_model.xml     as in the stage
    OUTLINE/own.bin                bytes that do not lie in the model's .bin as the stage has them
    OUTLINE/origins.json           the model's .bin, and where each segment of the stage begins

A split makes outlines, so that cutting copies nothing; the store serves pieces by them and makes
whole stages of them. Called by the split and the store. Blocks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from meshinfer.core.ids import Digest
from meshinfer.core.model import PIECE_BYTES, StageManifest, StoredFile
from meshinfer.errors import ShardCorrupt
from meshinfer.weights.disk import write_whole
from meshinfer.weights.manifest import PieceLocation, rows
from meshinfer.weights.piece_index import WeightsFile
from meshinfer.weights.stage_files import read_manifest, write_manifest

STAGE_XML = "openvino_model.xml"
STAGE_BIN = "openvino_model.bin"
_OWN_FILE = "own.bin"
_ORIGINS_FILE = "origins.json"
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment of the stage's .bin. `origin` is where it begins in the model's .bin, None when it
    does not lie there. `own` is where it begins in own.bin; with an origin, its last piece does,
    when padding makes that another one than the model's."""

    origin: int | None
    own: int | None


@dataclass(frozen=True, slots=True)
class Outline:
    """`segments` are those of the .bin, in order."""

    manifest: StageManifest
    weights: WeightsFile
    segments: tuple[Segment, ...]

    @property
    def usable(self) -> bool:
        """Whether the whole model is there still, as it was when the stage was cut."""
        return self.weights.unchanged

    def locations(self, folder: Path) -> Iterator[tuple[Digest, PieceLocation]]:
        """Of every piece of the stage; `folder` holds the outline."""
        for file in self.manifest.files:
            if file.name != STAGE_BIN:
                for digest, (offset, length) in zip(file.pieces, rows(file.segments), strict=True):
                    yield digest, PieceLocation(folder / file.name, offset, length)
                continue
            yield from self._of_weights(folder / _OWN_FILE, file)

    def _of_weights(self, own: Path, file: StoredFile) -> Iterator[tuple[Digest, PieceLocation]]:
        pieces = iter(file.pieces)
        for segment, size in zip(self.segments, file.segments, strict=True):
            for start in range(0, size, PIECE_BYTES):
                length = min(PIECE_BYTES, size - start)
                is_last = start + length == size
                if segment.origin is None:
                    assert segment.own is not None
                    place = PieceLocation(own, segment.own + start, length)
                elif is_last and segment.own is not None:
                    place = PieceLocation(own, segment.own, length)
                else:
                    place = PieceLocation(self.weights.path, segment.origin + start, length)
                yield next(pieces), place


def write_outline(folder: Path, outline: Outline, xml: bytes, own: bytes) -> None:
    """Into an empty folder. Raises DiskFull."""
    write_whole(folder / STAGE_XML, xml)
    write_whole(folder / _OWN_FILE, own)
    weights = outline.weights
    content = {
        "format": _FORMAT,
        "weights": str(weights.path),
        "size": weights.size,
        "changed": weights.changed,
        "segments": [list(asdict(segment).values()) for segment in outline.segments],
    }
    write_whole(folder / _ORIGINS_FILE, json.dumps(content).encode())
    write_manifest(folder, outline.manifest)


def read_outline(folder: Path) -> Outline:
    """Raises ShardCorrupt: not there, not readable, or its parts do not belong together."""
    manifest = read_manifest(folder)
    try:
        content = json.loads((folder / _ORIGINS_FILE).read_text(encoding="utf-8"))
        if content["format"] != _FORMAT:
            raise ValueError("another format")
        weights = WeightsFile(Path(content["weights"]), content["size"], content["changed"])
        segments = tuple(_segment(one) for one in content["segments"])
        (file,) = [one for one in manifest.files if one.name == STAGE_BIN]
        if len(file.segments) != len(segments):
            raise ValueError("not the segments of the manifest")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ShardCorrupt(f"The outline {folder.name[:12]} cannot be read.") from error
    return Outline(manifest, weights, segments)


def _segment(content: Sequence[int | None]) -> Segment:
    origin, own = content
    if origin is None and own is None:
        raise ValueError("a segment that lies nowhere")
    return Segment(origin, own)
