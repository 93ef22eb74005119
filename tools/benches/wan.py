"""Two users on two stages with everything, over one user without drafts, at four hop delays.

The delay is in the links (`--hop-delay`): every message between two PCs comes so much later.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

from tools.benches.bench_speculation import (
    Models,
    drafted_fleet,
    plain_fleet,
    question,
    speed,
    together,
)
from tools.benches.options import BenchOptions
from tools.benches.prompt_kinds import KINDS
from tools.benches.report import Report

UNIT = "tokens/s"


def run(report: Report, options: BenchOptions) -> None:
    models = Models.of(options)
    for hop_ms in (0, 10) if options.quick else options.hops_ms:
        naive = _naive(models, options, hop_ms)
        full = _full(models, options, hop_ms)
        report.compare(f"wan/hop={hop_ms}", full, UNIT, naive, "one user, no drafts")


def _words(options: BenchOptions, hop_ms: int) -> tuple[str, ...]:
    delay = ("--hop-delay", str(hop_ms)) if hop_ms else ()
    return ("--configuration", options.configuration, *delay)


def _naive(models: Models, options: BenchOptions, hop_ms: int) -> float:
    words = _words(options, hop_ms)
    with (
        tempfile.TemporaryDirectory() as scratch,
        plain_fleet(Path(scratch), models, 2, *words) as agents,
    ):
        url = agents[0].url
        speed(url, question(options.model, "Count to twenty.", 0, 24))  # warm
        asked = [question(options.model, one, 0) for one in list(KINDS.values())[::3]]
        return statistics.fmean(speed(url, one) for one in asked)


def _full(models: Models, options: BenchOptions, hop_ms: int) -> float:
    """Mean over four pairs of kinds."""
    words = _words(options, hop_ms)
    with (
        tempfile.TemporaryDirectory() as scratch,
        drafted_fleet(Path(scratch), models, 2, *words) as agents,
    ):
        url = agents[0].url
        speed(url, question(options.model, "Count to twenty.", None, 24))
        prompts = list(KINDS.values())
        pairs = zip(prompts[:4], prompts[4:], strict=True)
        return statistics.fmean(
            together(url, [question(options.model, one, None) for one in pair]) for pair in pairs
        )
