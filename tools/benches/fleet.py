"""A fleet of two one-core PCs over the real ring against openvino_genai on one core.

Every baseline runs in a process of its own on core 0, before the fleet starts: one user in the same
configuration and in its default one, and continuous batching with as many users. Parts (`--only`):
users, batching, first_token, prefix, long_prompt, soak, llama.
"""

from __future__ import annotations

import statistics
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from meshinfer.weights.folder import ModelFolder
from meshinfer.weights.obtain import catalogue_source
from meshinfer.weights.prepare import prepare
from tools.benches.baseline import DEFAULT, Work, on_one_core
from tools.benches.bench_fleet import fleet_of, load, prompts_of
from tools.benches.fleet_llama import compare_with_llama
from tools.benches.fleet_prompts import (
    compare_first_token,
    compare_prefix,
    first_token_prompts,
    long_prompt,
)
from tools.benches.fleet_soak import soak
from tools.benches.options import BenchOptions
from tools.benches.report import Report

TOKENS = 64
BATCHING_TOKENS = 48
HOPS = 3  # leader to stage 0, to stage 1, to the leader


@dataclass(slots=True)
class Baselines:
    """What openvino_genai did on one core, in tokens a second or seconds."""

    same: float = 0.0
    default: float = 0.0
    chain_s: float = 0.0  # a token, our stages in one process
    batching: dict[int, float] = field(default_factory=dict)  # by users
    first_token_s: float = 0.0


def run(report: Report, options: BenchOptions) -> None:
    folder = prepare(catalogue_source(options.model), options.models, None, lambda progress: None)
    baselines = _measure_baselines(folder, options)
    users = (1, 2, 16) if options.quick else (1, 2, 16, 32, 64)
    ours: dict[int, float] = {}
    with (
        tempfile.TemporaryDirectory() as scratch,
        fleet_of(Path(scratch), folder.path, 2, "--configuration", options.configuration) as agents,
    ):
        url, name = agents[0].url, options.model
        load(url, name, 2, 16)  # warm
        for count in users:
            if options.wants("users") or (options.wants("batching") and count > 2):
                speeds = [load(url, name, count, TOKENS) for _ in range(options.repeat)]
                ours[count] = statistics.median(one.tokens_per_s for one in speeds)
                _report_users(report, options, baselines, count, ours[count])
        if options.wants("first_token"):
            compare_first_token(report, options, url, baselines.first_token_s)
        if options.wants("prefix"):
            compare_prefix(report, options, url)
        if options.wants("long_prompt"):
            long_prompt(report, options, url)
        if options.wants("soak") and options.soak_minutes > 0:
            soak(report, options, agents)
    if options.wants("llama") and options.llama_bin is not None:
        compare_with_llama(report, options, ours)


def _measure_baselines(folder: ModelFolder, options: BenchOptions) -> Baselines:
    found = Baselines()
    rounds = 1 + options.repeat
    configuration = options.configuration

    def best(work: Work) -> list[list[float]]:
        return [on_one_core(folder.path, work, one) for one in (configuration, DEFAULT)]

    if options.wants("users"):
        same, default = best(Work("decode", prompts_of(1), TOKENS, rounds))
        chain = on_one_core(
            folder.path, Work("chain", prompts_of(1), TOKENS, rounds), configuration
        )
        found.same, found.default = statistics.median(same[1:]), statistics.median(default[1:])
        found.chain_s = 1.0 / statistics.median(chain[1:])
    if options.wants("batching"):
        for count in (16,) if options.quick else (32, 64):
            tries = best(Work("batching", prompts_of(count), BATCHING_TOKENS))
            found.batching[count] = max(statistics.median(one) for one in tries)
    if options.wants("first_token"):
        tries = best(Work("first_token", first_token_prompts(options), 2))
        found.first_token_s = min(statistics.median(one) for one in tries)
    return found


def _report_users(
    report: Report, options: BenchOptions, baselines: Baselines, count: int, speed: float
) -> None:
    unit = "tokens/s"
    if options.wants("users"):
        report.compare(f"fleet/users={count}", speed, unit, baselines.same, "genai 1 user")
        report.compare(
            f"fleet/default/users={count}", speed, unit, baselines.default, "genai default 1 user"
        )
        if count == 1:
            hop_ms = (1.0 / speed - baselines.chain_s) * 1000 / HOPS
            report.absolute("fleet/hop_ms", hop_ms, "ms")
    if count in baselines.batching:
        batching, name = baselines.batching[count], f"genai batching {count} users"
        report.compare(f"fleet/batching/users={count}", speed, unit, batching, name)
