"""Models on this PC's disk: finding, opening and describing them.

    MODELS/MODEL_ID/      the IR, tokenizer, detokenizer and description.json

Called by `prepare` (which makes them), the weights process and commands. Everything here blocks.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from meshinfer.core.ids import ModelId
from meshinfer.core.model import ModelShape
from meshinfer.errors import ModelNotFound, ShardCorrupt
from meshinfer.weights.cut import read_model
from meshinfer.weights.cut_points import anatomy
from meshinfer.weights.description import (
    DESCRIPTION_FILE,
    Description,
    ModelFile,
    digest_over,
    from_json,
)
from meshinfer.weights.disk import file_digest
from meshinfer.weights.facts import ModelFacts
from meshinfer.weights.plain_name import objection

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


def describe(
    model: ModelId,
    folder: Path,
    facts: ModelFacts,
    source: str,
    recipe: str = "original",
    revision: str = "",
) -> Description:
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
        weights=facts.weights,
        accuracy=facts.accuracy,
        recipe=recipe,
        revision=revision,
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
    check_id(model)
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


def check_id(model: ModelId) -> None:
    """Raises ModelNotFound for a name that is no plain one."""
    why = objection(model)
    if why is not None:
        raise ModelNotFound(f"{model[:60]!r} is no name of a model: {why}.")
