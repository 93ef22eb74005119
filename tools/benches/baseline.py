"""A baseline on one core: a process of its own, pinned to core 0, that prints its figures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PATIENCE_S = 600.0
DEFAULT = "default"  # openvino_genai's own configuration


@dataclass(frozen=True, slots=True)
class Work:
    """What a baseline is to do; see tools.benches.one_core."""

    kind: str
    prompts: Sequence[str]
    tokens: int
    rounds: int = 1


def on_one_core(folder: Path, work: Work, configuration: str) -> list[float]:
    """The figures of a baseline. Ends the bench with its last words when it fails."""
    order = {"prompts": list(work.prompts), "tokens": work.tokens, "rounds": work.rounds}
    done = subprocess.run(
        [sys.executable, "-m", "tools.benches.one_core", work.kind, str(folder), configuration],
        input=json.dumps(order).encode(),
        capture_output=True,
        check=False,
        timeout=PATIENCE_S,
        preexec_fn=lambda: pin(0),  # noqa: PLW1509 - no threads yet
    )
    if done.returncode != 0:
        words = done.stderr.decode(errors="replace").strip().splitlines()[-3:]
        raise SystemExit(f"The baseline {work.kind} {configuration} failed: {' / '.join(words)}")
    figures: list[float] = json.loads(done.stdout.splitlines()[-1])["figures"]
    return figures


def pin(core: int) -> None:
    """This process and what it starts, where the system can."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})
