"""A model on the disk becomes stages in the store: cut, saved, hashed, published, one by one.

Called by the weights process of the leader and by `meshinfer split`. Blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshinfer.core.model import StageManifest, UnitRange
from meshinfer.weights.cut import cut, openvino_errors
from meshinfer.weights.disk import disk_errors, require_room
from meshinfer.weights.folder import ModelFolder
from meshinfer.weights.manifest import build_manifest, describe_file
from meshinfer.weights.progress import Progress, Tell
from meshinfer.weights.store import Store

STAGE_FILES = ("openvino_model.xml", "openvino_model.bin")


def split(
    folder: ModelFolder, ranges: Sequence[UnitRange], store: Store, progress: Tell
) -> tuple[StageManifest, ...]:
    """The manifests of the stages, in the order of `ranges`.

    A stage that the store holds already (same model, units and OpenVINO) is not cut again. Memory
    follows the stage: the whole is mapped, only what the stage keeps is read.
    Raises StageFailed (a cut that the model does not allow), DiskFull.
    """
    total = sum(folder.shape.weight_bytes(units) for units in ranges)
    done = 0
    manifests = []
    for units in ranges:
        progress(Progress("split", done, total))
        manifests.append(_stage(folder, units, store))
        done += folder.shape.weight_bytes(units)
    progress(Progress("split", total, total))
    return tuple(manifests)


def _stage(folder: ModelFolder, units: UnitRange, store: Store) -> StageManifest:
    import openvino

    version = openvino.get_version().partition("-")[0]
    known = store.find(folder.shape.digest, units, version)
    if known is not None:
        return known
    with store.scratch() as scratch:
        require_room(scratch, folder.shape.weight_bytes(units))
        model = cut(folder.xml, units)
        with openvino_errors(f"Saving stage {units}"), disk_errors(scratch):
            openvino.save_model(model, scratch / STAGE_FILES[0], compress_to_fp16=False)
        files = [describe_file(scratch / name) for name in STAGE_FILES]
        manifest = build_manifest(folder.model, folder.shape.digest, units, version, files)
        store.publish(scratch, manifest)
    return manifest
