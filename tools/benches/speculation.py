"""Speculation against the same fleet without it: eight kinds of questions at four hop delays.

Parts (`--only`): kinds (two stages, every delay), copy (no draft model), three_stages, sweep (fixed
numbers of drafts, as the paper's table), agreement (whether the text is that of the plain run, in
deterministic mode for certain). Both fleets run at once and are asked in turn.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tools.agent_process import AgentProcess
from tools.benches.bench_fleet import ask_once
from tools.benches.bench_speculation import (
    TOKENS,
    Models,
    acceptance,
    drafted_fleet,
    plain_fleet,
    question,
    speed,
)
from tools.benches.options import BenchOptions
from tools.benches.prompt_kinds import COPY, KINDS
from tools.benches.report import Report

SWEEP = (2, 3, 5, 7, 10)
SWEEP_KINDS = ("code", "technical", "chat")
AGREEMENT_TOKENS = 32
UNIT = "tokens/s"


@dataclass(frozen=True, slots=True)
class Pair:
    """The leaders of a fleet with drafts and of one without."""

    drafted: AgentProcess
    plain: AgentProcess


def run(report: Report, options: BenchOptions) -> None:
    models = Models.of(options)
    for hop_ms in (0,) if options.quick else options.hops_ms:
        if options.wants("kinds") or (hop_ms == 0 and options.wants("copy")):
            with _pair(models, options, 2, hop_ms) as pair:
                if options.wants("kinds"):
                    _compare_kinds(report, options, pair, hop_ms)
                if hop_ms == 0 and options.wants("copy"):
                    _compare_copy(report, options, pair.plain)
    if options.wants("three_stages") and not options.quick:
        with _pair(models, options, 3, 100) as pair:
            with_, without = _means(options, pair, rounds=1)
            report.compare("speculation/three_stages/hop=100", with_, UNIT, without, "plain")
    if options.wants("sweep") and not options.quick:
        _sweep(report, options, models)
    if options.wants("agreement"):
        _agreement(report, options, models)


@contextmanager
def _pair(
    models: Models, options: BenchOptions, stages: int, hop_ms: float, *words: str
) -> Iterator[Pair]:
    words = (*words, *(("--hop-delay", str(hop_ms)) if hop_ms else ()))
    if "--deterministic" not in words:
        words = ("--configuration", options.configuration, *words)
    with (
        tempfile.TemporaryDirectory() as one,
        tempfile.TemporaryDirectory() as two,
        plain_fleet(Path(one), models, stages, *words) as plain,
        drafted_fleet(Path(two), models, stages, *words) as drafted,
    ):
        pair = Pair(drafted[0], plain[0])
        for agent in (pair.drafted, pair.plain):
            ask_once(agent.url, question(options.model, "Count to twenty.", None, 24))
        yield pair


def _compare_kinds(report: Report, options: BenchOptions, pair: Pair, hop_ms: int) -> None:
    rounds = options.repeat if hop_ms == 0 else 1
    found: list[tuple[float, float]] = []
    for kind in KINDS:
        with_, without, share = _measured(options, pair, kind, rounds)
        report.compare(f"speculation/{kind}/hop={hop_ms}", with_, UNIT, without, "plain")
        report.absolute(f"speculation/acceptance/{kind}/hop={hop_ms}", share, "of drafts")
        found.append((with_, without))
    mean_with, mean_without = (statistics.fmean(side) for side in zip(*found, strict=True))
    report.compare(f"speculation/mean/hop={hop_ms}", mean_with, UNIT, mean_without, "plain")


def _measured(
    options: BenchOptions, pair: Pair, kind: str, rounds: int
) -> tuple[float, float, float]:
    """Tokens a second with and without drafts, in turn, and the share of drafts that were right."""
    with_, without = [], []
    before = acceptance(pair.drafted)
    for _ in range(rounds):
        without.append(speed(pair.plain.url, question(options.model, KINDS[kind], 0)))
        with_.append(speed(pair.drafted.url, question(options.model, KINDS[kind], None)))
    proposed, accepted = (
        now - then for now, then in zip(acceptance(pair.drafted), before, strict=True)
    )
    share = accepted / proposed if proposed else 0.0
    return statistics.median(with_), statistics.median(without), share


def _means(options: BenchOptions, pair: Pair, rounds: int) -> tuple[float, float]:
    found = [_measured(options, pair, kind, rounds)[:2] for kind in KINDS]
    with_, without = (statistics.fmean(side) for side in zip(*found, strict=True))
    return with_, without


def _compare_copy(report: Report, options: BenchOptions, agent: AgentProcess) -> None:
    with_, without = [], []
    for _ in range(options.repeat):
        without.append(speed(agent.url, question(options.model, COPY, 0)))
        with_.append(speed(agent.url, question(options.model, COPY, None)))
    values = statistics.median(with_), statistics.median(without)
    report.compare("speculation/copy", values[0], UNIT, values[1], "plain")


def _sweep(report: Report, options: BenchOptions, models: Models) -> None:
    """Three stages, one stream, so many drafts in every step."""
    for hop_ms in (0, 50, 100):
        with _pair(models, options, 3, hop_ms) as pair:
            plain = _mean_speed(options, pair.plain, 0)
            for count in (*SWEEP, None):
                before = acceptance(pair.drafted)
                found = _mean_speed(options, pair.drafted, count)
                now = acceptance(pair.drafted)
                name = "chosen" if count is None else str(count)
                row = f"speculation/sweep/K={name}/hop={hop_ms}"
                report.compare(row, found, UNIT, plain, "plain")
                share = (now[1] - before[1]) / max(1, now[0] - before[0])
                report.absolute(f"{row}/acceptance", share, "of drafts")


def _mean_speed(options: BenchOptions, agent: AgentProcess, drafts: int | None) -> float:
    asked = [question(options.model, KINDS[kind], drafts, TOKENS // 2) for kind in SWEEP_KINDS]
    return statistics.fmean(speed(agent.url, one) for one in asked)


def _agreement(report: Report, options: BenchOptions, models: Models) -> None:
    """Of the tokens of the plain run, those that come in the same order with drafts."""
    for name, words in (("deterministic", ("--deterministic",)), ("fast", ())):
        shares = []
        with _pair(models, options, 2, 0, *words) as pair:
            for prompt in KINDS.values():
                plain = ask_once(
                    pair.plain.url, question(options.model, prompt, 0, AGREEMENT_TOKENS)
                )
                for drafts in (None, 1, 3, 8):
                    asked = question(options.model, prompt, drafts, AGREEMENT_TOKENS)
                    shares.append(_common(plain.text, ask_once(pair.drafted.url, asked).text))
        report.absolute(f"speculation/agreement/{name}", min(shares), "of the text, least")
        mean = statistics.fmean(shares)
        report.absolute(f"speculation/agreement/{name}/mean", mean, "of the text")


def _common(text: str, other: str) -> float:
    """Share of `text` up to the first difference."""
    same = 0
    for one, two in zip(text, other, strict=False):
        if one != two:
            break
        same += 1
    return same / max(1, len(text), len(other))
