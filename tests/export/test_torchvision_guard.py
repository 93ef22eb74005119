"""Beside the CPU build of torch, pip installs a torchvision that cannot be imported; this is that
very environment."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys

import pytest

PLAIN = "from transformers import LlamaForCausalLM"
GUARDED = (
    "from meshinfer.weights.export.torchvision_guard import hide_torchvision\n"
    "hide_torchvision()\n"
    "import importlib.util\n"
    "assert importlib.util.find_spec('torchvision') is None\n"
    "try:\n"
    "    import torchvision.transforms\n"
    "except ModuleNotFoundError:\n"
    "    print('hidden')\n"
)


def python(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=240, check=False
    )


def test_a_hidden_torchvision_cannot_be_found_nor_imported() -> None:
    assert importlib.metadata.version("torchvision")  # optimum-intel brought it
    done = python(GUARDED)
    assert done.stdout.split() == ["hidden"], done.stderr


@pytest.mark.slow
def test_transformers_works_beside_a_torchvision_that_does_not() -> None:
    if python("import torchvision").returncode == 0:
        pytest.skip("this environment's torchvision fits its torch")
    assert python(PLAIN).returncode != 0  # the trap is there
    done = python(GUARDED + PLAIN)
    assert done.returncode == 0, done.stderr
