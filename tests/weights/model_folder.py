"""Model folders around the tiny model, described by the real code."""

from __future__ import annotations

import shutil
from pathlib import Path

from meshinfer.core.ids import ModelId
from meshinfer.weights.description import DESCRIPTION_FILE, to_json
from meshinfer.weights.folder import ModelFolder, describe, open_folder
from meshinfer.weights.gguf import ModelFacts

FACTS = ModelFacts("llama", 2048, (2, 7), 1, "{{ messages }}")


def make_model_folder(models_root: Path, xml: Path, model: str = "tiny") -> ModelFolder:
    """What `prepare` leaves, without a GGUF."""
    folder = models_root / model
    folder.mkdir(parents=True)
    for path in (xml, xml.with_suffix(".bin")):
        shutil.copyfile(path, folder / path.name)
    description = describe(ModelId(model), folder, FACTS, "a test")
    (folder / DESCRIPTION_FILE).write_text(to_json(description), encoding="utf-8")
    return open_folder(folder)
