"""Tests of the export. Those that need torch run in an environment with the extra `export`
(`make test-export`); elsewhere their files are not collected, and the header says so."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from meshinfer.weights.export.child import ENVIRONMENT
from meshinfer.weights.export.torchvision_guard import hide_torchvision

WITHOUT_TORCH = {
    "test_installed.py", "test_orders.py", "test_plan.py", "test_settings.py", "test_tensors.py",
}  # fmt: skip

HAS_EXTRA = importlib.util.find_spec("torch") is not None

if HAS_EXTRA:  # as the child does, before any test imports transformers
    os.environ.update(ENVIRONMENT)
    hide_torchvision()

collect_ignore = (
    []
    if HAS_EXTRA
    else [
        path.name
        for path in Path(__file__).parent.glob("test_*.py")
        if path.name not in WITHOUT_TORCH
    ]
)

LIBRARIES = "(torch|transformers|optimum|nncf|openvino|openvino_tokenizers|tokenizers)"
"""Their warnings are about each other and not ours to mend; all others are errors here too."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.filterwarnings(f"ignore::Warning:{LIBRARIES}"))


def pytest_report_header() -> str | None:
    if HAS_EXTRA:
        return None
    return f"tests/export: {len(collect_ignore)} files need torch; make test-export runs them"
