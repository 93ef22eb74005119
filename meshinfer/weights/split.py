"""A model folder becomes stages in the store. Called by the weights process and by commands.

Cutting copies no weights: the store keeps each stage as an outline of where they lie.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshinfer.core.model import PIECE_BYTES, StageManifest, StoredFile, UnitRange
from meshinfer.errors import UsageError
from meshinfer.weights.constants import rewrite, scan
from meshinfer.weights.cut import cut, openvino_errors
from meshinfer.weights.disk import disk_errors
from meshinfer.weights.folder import ModelFolder
from meshinfer.weights.layout import lay_out, padded
from meshinfer.weights.manifest import build_manifest, describe_bytes
from meshinfer.weights.outline import STAGE_BIN, STAGE_XML, Outline, Segment, write_outline
from meshinfer.weights.piece_index import PieceIndex, piece_index
from meshinfer.weights.progress import Progress, Tell
from meshinfer.weights.stage_weights import StageConstant, match
from meshinfer.weights.store import Store

_OUTLINE_BYTES = 64 << 20
"""More than an outline of any stage seen so far (3 MB for 30 layers)."""


def split(
    folder: ModelFolder, ranges: Sequence[UnitRange], store: Store, progress: Tell
) -> tuple[StageManifest, ...]:
    """The manifests of the stages, in the order of `ranges`; all of them are in the store, whole or
    as outlines. `Store.assemble` makes a folder of one; pieces are served either way.

    A stage that was cut before from the same model, units and OpenVINO is not cut again. Blocks;
    memory follows the graph, not the weights. Raises UsageError (units that the model has not),
    StageFailed (it cannot be cut there), ShardCorrupt (its files cannot be right), DiskFull.
    """
    import openvino as ov

    version = str(ov.get_version())
    shape = folder.shape
    for units in ranges:
        if units.end > len(shape.units):
            raise UsageError(f"{shape.model} has {len(shape.units)} units, not {units.end}.")
    total = sum(shape.weight_bytes(units) for units in ranges)
    done = 0
    manifests = []
    index: PieceIndex | None = None
    for units in ranges:
        progress(Progress("split", done, total))
        manifest = store.find(shape.digest, units, version)
        if manifest is None or manifest.model != shape.model:
            index = index or piece_index(folder.xml, progress)
            manifest = _make(folder, units, store, version, index)
        manifests.append(manifest)
        done += shape.weight_bytes(units)
    progress(Progress("split", total, total))
    return tuple(manifests)


@dataclass(frozen=True, slots=True)
class _Drawn:
    """What an outline is made of."""

    xml: bytes
    own: bytes
    segments: tuple[Segment, ...]
    files: tuple[StoredFile, ...]


def _make(
    folder: ModelFolder, units: UnitRange, store: Store, version: str, index: PieceIndex
) -> StageManifest:
    with store.scratch(_OUTLINE_BYTES) as scratch:
        stage = cut(folder.xml, units)
        stage.set_rt_info(version, ["OpenVINO Runtime"])  # as save_model does
        drawn = _draw(stage, _serialised(stage, scratch, units), index)
        del stage
        gc.collect()  # unmap the model
        manifest = build_manifest(
            folder.model, folder.shape.digest, units, version, list(drawn.files)
        )
        outline = Outline(manifest, index.weights, drawn.segments)
        with disk_errors(scratch):
            write_outline(scratch, outline, drawn.xml, drawn.own)
        store.publish_outline(scratch, manifest)
    return manifest


def _serialised(stage: Any, scratch: Path, units: UnitRange) -> bytes:
    """The stage's XML. Its weights go nowhere: they are in the whole model's .bin."""
    import openvino as ov

    xml, aside = scratch / STAGE_XML, scratch / "weights.new"
    with disk_errors(scratch), openvino_errors(f"Writing the stage {units}"):
        try:
            ov.serialize(stage, xml, os.devnull)
        except RuntimeError:  # a system without a device that OpenVINO writes to
            ov.serialize(stage, xml, aside)
    text = xml.read_bytes()
    xml.unlink()
    aside.unlink(missing_ok=True)
    return text


def _draw(stage: Any, xml: bytes, index: PieceIndex) -> _Drawn:
    constants = scan(xml)
    matched = match(stage, constants, index)
    layout = lay_out([one.content for one in matched])
    places = zip(constants, layout.offsets, [one.size for one in constants], strict=True)
    xml = rewrite(xml, tuple(places))
    own = bytearray(layout.small)
    segments = [Segment(None, 0)] if layout.small else []
    segments += [_segment(matched[number], own, index) for number in layout.large]
    small = describe_bytes(STAGE_BIN, layout.small)
    digests = b"".join([small.digests, *(matched[number].content.key for number in layout.large)])
    files = (describe_bytes(STAGE_XML, xml), StoredFile(STAGE_BIN, layout.segments, digests))
    return _Drawn(xml, bytes(own), tuple(segments), files)


def _segment(one: StageConstant, own: bytearray, index: PieceIndex) -> Segment:
    """Where a large constant lies; what is not in the model's .bin as it is here goes to `own`."""
    size, end = one.content.size, len(own)
    if one.origin is None:
        assert one.own is not None
        own += bytes(one.own).ljust(padded(size), b"\0")
        return Segment(None, end)
    if size == padded(size):
        return Segment(one.origin, None)
    start = (size - 1) // PIECE_BYTES * PIECE_BYTES
    with index.weights.path.open("rb") as file:
        file.seek(one.origin + start)
        own += file.read(size - start).ljust(padded(size) - start, b"\0")
    return Segment(one.origin, end)
