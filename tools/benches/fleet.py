"""A fleet of two one-core PCs over the real ring against openvino_genai on one core.

The baseline runs in a process of its own on core 0, in the same configuration (f32, f32 cache,
dynamic quantisation group 128) and in its default one; both are asked first, while no fleet runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from meshinfer.weights.folder import ModelFolder
from meshinfer.weights.obtain import catalogue_source
from meshinfer.weights.prepare import prepare
from tools.benches.bench_fleet import fleet_of, load
from tools.benches.report import Report

TOKENS = 64
HOPS = 3  # leader to stage 0, to stage 1, to the leader


def run(report: Report, models: Path, quick: bool) -> None:
    name = "smollm2-135m" if quick else "qwen2.5-coder-1.5b"
    folder = prepare(catalogue_source(name), models, None, lambda progress: None)
    baseline = _baseline(folder, "same")
    default = _baseline(folder, "default")
    chain_s = 1.0 / _baseline(folder, "chain")
    users = (1, 2, 16) if quick else (1, 2, 16, 32, 64)
    with (
        tempfile.TemporaryDirectory() as scratch,
        fleet_of(Path(scratch), folder.path, 2) as agents,
    ):
        load(agents[0], name, 2, 16)
        for count in users:
            found = load(agents[0], name, count, TOKENS)
            report.compare(
                f"fleet/users={count}", found.tokens_per_s, "tokens/s", baseline, "genai 1 user"
            )
            report.compare(
                f"fleet/default/users={count}",
                found.tokens_per_s,
                "tokens/s",
                default,
                "genai default 1 user",
            )
            if count == 1:
                hop_ms = (1.0 / found.tokens_per_s - chain_s) * 1000 / HOPS
                report.absolute("fleet/hop_ms", hop_ms, "ms")


def _baseline(folder: ModelFolder, kind: str) -> float:
    """Tokens a second of one user on one core, from a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tools.benches.one_core", kind, str(folder.path)],
        capture_output=True,
        check=True,
        preexec_fn=_on_core_zero,  # noqa: PLW1509 - no threads yet
    )
    return float(json.loads(done.stdout.splitlines()[-1])["tokens_per_s"])


def _on_core_zero() -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {0})
