"""Models of the weights tests: tiny ones on disk, and SmolLM2 through the project's own pull."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import openvino as ov
import pytest

from meshinfer.weights.folder import ModelFolder, open_folder
from tests.weights.tiny import tiny_model

SaveTiny = Callable[..., Path]


@pytest.fixture(scope="session")
def save_tiny(tmp_path_factory: pytest.TempPathFactory) -> SaveTiny:
    """`save_tiny(style="optimum", ...)`: the path of a tiny model's XML, made once a session."""
    made: dict[str, Path] = {}

    def save(**arguments: Any) -> Path:
        key = repr(sorted(arguments.items()))
        if key not in made:
            made[key] = tmp_path_factory.mktemp("tiny") / "openvino_model.xml"
            ov.save_model(tiny_model(**arguments), made[key], compress_to_fp16=False)
        return made[key]

    return save


@pytest.fixture(scope="session")
def smollm2(smollm2: Path) -> ModelFolder:
    """Tests that ask for it are marked openvino and slow."""
    return open_folder(smollm2)
