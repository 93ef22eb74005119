"""A model folder becomes stages in the store. Called by the weights process and by commands."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path

from meshinfer.core.model import StageManifest, UnitRange
from meshinfer.errors import UsageError
from meshinfer.weights.cut import cut, openvino_errors
from meshinfer.weights.disk import disk_errors, require_room
from meshinfer.weights.folder import MODEL_XML, ModelFolder
from meshinfer.weights.manifest import build_manifest, describe_file
from meshinfer.weights.progress import Progress, Tell
from meshinfer.weights.store import Store

_GRAPH_BYTES = 16 << 20
"""More than the XML of any stage seen so far (2.7 MB for 30 layers)."""


def split(
    folder: ModelFolder, ranges: Sequence[UnitRange], store: Store, progress: Tell
) -> tuple[StageManifest, ...]:
    """The manifests of the stages, in the order of `ranges`; all of them are in the store.

    A stage that was cut before from the same model, units and OpenVINO is not cut again. Blocks;
    memory follows one stage. Raises UsageError (units that the model has not), StageFailed (it
    cannot be cut there), DiskFull.
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
    for units in ranges:
        progress(Progress("split", done, total))
        manifest = store.find(shape.digest, units, version)
        if manifest is None or manifest.model != shape.model:
            manifest = _make(folder, units, store, version)
        manifests.append(manifest)
        done += shape.weight_bytes(units)
    progress(Progress("split", total, total))
    return tuple(manifests)


def _make(folder: ModelFolder, units: UnitRange, store: Store, version: str) -> StageManifest:
    with store.scratch() as scratch:
        require_room(scratch, folder.shape.weight_bytes(units) + _GRAPH_BYTES)
        _save(folder, units, scratch)
        files = [describe_file(path) for path in sorted(scratch.iterdir())]
        manifest = build_manifest(folder.model, folder.shape.digest, units, version, files)
        store.publish(scratch, manifest)
    return manifest


def _save(folder: ModelFolder, units: UnitRange, scratch: Path) -> None:
    import openvino as ov

    stage = cut(folder.xml, units)
    with disk_errors(scratch), openvino_errors(f"Saving the stage {units}"):
        ov.save_model(stage, scratch / MODEL_XML, compress_to_fp16=False)
    del stage
    gc.collect()  # unmap the model before the files are hashed
