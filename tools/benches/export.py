"""From half-precision safetensors to an INT4 model: memory and time against optimum-cli.

Both sides make the same weights of the same checkpoint, tokenizer included, in processes of their
own, and take turns. Memory is that of the whole tree of processes: the sum of their proportional
sets, which counts a page that several share once (other systems: their resident sets). Runs in the
environment of `make test-export`.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from meshinfer.core.ids import ModelId
from meshinfer.weights.catalogue import Catalogue
from meshinfer.weights.export.child import ENVIRONMENT
from meshinfer.weights.export.installed import export_versions
from meshinfer.weights.export.torchvision_guard import hide_torchvision
from meshinfer.weights.progress import untold
from meshinfer.weights.wheels import fetch
from tools.benches.half_precision import make_half
from tools.benches.options import BenchOptions
from tools.benches.report import Report

ROUNDS = 3
_EVERY_S = 0.05
_OPTIMUM = """
from meshinfer.weights.export.torchvision_guard import hide_torchvision
hide_torchvision()
from optimum.commands.optimum_cli import main
main()
"""


@dataclass(frozen=True, slots=True)
class Cost:
    peak: int  # bytes
    seconds: float


def run(report: Report, options: BenchOptions) -> None:
    export_versions()
    hide_torchvision()
    # optimum-cli wants a group that divides every row, and SmolLM2's have 576 values.
    name, group = ("smollm2-135m", 64) if options.quick else ("qwen2.5-coder-1.5b", 128)
    folder = options.models / ".export"
    gguf = fetch(Catalogue.load().find(ModelId(name)), folder / "gguf", untold)
    checkpoint = make_half(gguf, folder / name)
    ours, theirs = [], []
    for _ in range(1 if options.quick else ROUNDS):
        there, here = folder / "theirs", folder / "ours"
        theirs.append(_measured(_optimum(checkpoint, there, group), there))
        ours.append(_measured(_meshinfer(checkpoint, here, group), here))
    _compare_sizes(folder)
    mb = 1 / 1_000_000
    report.compare(
        "export/peak",
        max(one.peak for one in ours) * mb,
        "MB",
        min(one.peak for one in theirs) * mb,
        "optimum-cli",
    )
    report.compare(
        "export/time",
        statistics.median(one.seconds for one in ours),
        "s",
        statistics.median(one.seconds for one in theirs),
        "optimum-cli",
    )


def _meshinfer(checkpoint: Path, out: Path, group: int) -> list[str]:
    return [
        *(sys.executable, "-m", "meshinfer", "export", str(checkpoint), "--out", str(out)),
        *("--format", "int4", "--group-size", str(group)),
    ]


def _optimum(checkpoint: Path, out: Path, group: int) -> list[str]:
    return [
        *(sys.executable, "-c", _OPTIMUM, "export", "openvino", "--model", str(checkpoint)),
        *("--task", "text-generation-with-past", "--weight-format", "int4", "--sym"),
        *("--group-size", str(group), "--ratio", "1.0", str(out)),
    ]


def _measured(command: Sequence[str], out: Path) -> Cost:
    """Run it from nothing to its end. Exits when it fails."""
    shutil.rmtree(out, ignore_errors=True)
    log = out.with_suffix(".log")
    began, peak = time.perf_counter(), 0
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=file, env={**os.environ, **ENVIRONMENT}
        )
        root = psutil.Process(process.pid)
        while process.poll() is None:
            peak = max(peak, _tree_bytes(root))
            time.sleep(_EVERY_S)
    seconds = time.perf_counter() - began
    if process.returncode != 0:
        raise SystemExit(f"{command[1:4]} failed; {log} has what it said.")
    return Cost(peak, seconds)


def _tree_bytes(root: psutil.Process) -> int:
    total = 0
    try:
        for process in (root, *root.children(recursive=True)):
            info = process.memory_full_info() if sys.platform == "linux" else process.memory_info()
            total += getattr(info, "pss", info.rss)
    except psutil.Error:
        return 0  # one of them ended meanwhile: the next look counts
    return total


def _compare_sizes(folder: Path) -> None:
    """Both made the same: the bytes of weights tell. Exits when they differ."""
    ours, theirs = (
        (folder / name / "openvino_model.bin").stat().st_size for name in ("ours", "theirs")
    )
    if ours != theirs:
        raise SystemExit(f"Not the same work: {ours} bytes of weights against {theirs}.")
