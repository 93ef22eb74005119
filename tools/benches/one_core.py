"""The baselines of the fleet bench, each in a process that is pinned to one core by its parent.

    python -m tools.benches.one_core KIND FOLDER CONFIGURATION < ORDER

KIND is `decode` (openvino_genai, one user), `batching` (its continuous batching, many users),
`first_token` (openvino_genai, a prompt) or `chain` (our two stages called one after another in one
process, which is what the ring adds to). CONFIGURATION is `default` (openvino_genai's own) or one
of ours such as `f32/128/f32`. ORDER is JSON: `prompts`, `tokens`, `rounds`. Prints JSON.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from meshinfer.core.configuration import Configuration
from meshinfer.core.request import ChatMessage
from meshinfer.engine.configuration import StageOptions, properties
from meshinfer.engine.paged import PagedStage
from meshinfer.engine.tokenizer import GenAiTokenizer
from meshinfer.node.even_cuts import even_cut
from meshinfer.weights.cut import cut
from meshinfer.weights.folder import ModelFolder, open_folder
from tools.benches.split import chain_speed

CACHE_GB = 2
"""For 64 users with 200 tokens each: the 1.5B takes 57 kB a token at f32."""


@dataclass(frozen=True, slots=True)
class Order:
    prompts: list[list[int]]  # token ids
    tokens: int  # of each answer
    rounds: int


def main() -> None:
    kind, folder, configuration = sys.argv[1], open_folder(Path(sys.argv[2])), sys.argv[3]
    asked = json.load(sys.stdin)
    tokenizer = GenAiTokenizer.load(folder.path)
    prompts = [tokenizer.encode_chat((ChatMessage("user", one),)) for one in asked["prompts"]]
    order = Order(prompts, asked["tokens"], asked["rounds"])
    options = StageOptions(threads=1, cache_tokens=4096)
    chosen = {"INFERENCE_NUM_THREADS": 1}
    if configuration != "default":
        options = options.configured(Configuration.parse(configuration))
        chosen = properties(options)
    found = {"decode": decode, "first_token": first_token, "batching": batching}
    if kind == "chain":
        figures = chain(folder, options, order)
    else:
        figures = found[kind](folder, chosen, order)
    print(json.dumps({"figures": figures}))


def decode(folder: ModelFolder, chosen: dict[str, Any], order: Order) -> list[float]:
    """Tokens a second of each round, one user."""
    pipeline = _pipeline(folder, chosen)
    config = _greedy(order.tokens)
    metrics = [
        pipeline.generate(_tensor(order.prompts[number % len(order.prompts)]), config).perf_metrics
        for number in range(order.rounds)
    ]
    return [1000.0 / float(one.get_tpot().mean) for one in metrics]


def first_token(folder: ModelFolder, chosen: dict[str, Any], order: Order) -> list[float]:
    """Seconds to the first token of each prompt; the first prompt is for warming up."""
    pipeline = _pipeline(folder, chosen)
    config = _greedy(order.tokens)
    metrics = [pipeline.generate(_tensor(one), config).perf_metrics for one in order.prompts]
    return [float(one.get_ttft().mean) / 1000.0 for one in metrics[1:]]


def batching(folder: ModelFolder, chosen: dict[str, Any], order: Order) -> list[float]:
    """Tokens a second of all users together, while all decode."""
    import openvino_genai

    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = CACHE_GB
    pipeline = openvino_genai.ContinuousBatchingPipeline(str(folder.path), scheduler, "CPU", chosen)
    return [_batch(pipeline, order) for _ in range(order.rounds)]


def _batch(pipeline: Any, order: Order) -> float:
    config = _greedy(order.tokens)
    handles = [
        pipeline.add_request(number, _tensor(prompt), config)
        for number, prompt in enumerate(order.prompts)
    ]
    marks: list[list[float]] = [[] for _ in handles]
    while pipeline.has_non_finished_requests():
        pipeline.step()
        now = time.perf_counter()
        for mark, handle in zip(marks, handles, strict=True):
            if handle.can_read():
                for output in handle.read().values():
                    mark.extend([now] * len(output.generated_ids))
    begin, end = max(mark[0] for mark in marks), min(mark[-1] for mark in marks)
    counted = sum(1 for mark in marks for moment in mark if begin < moment <= end)
    return counted / (end - begin)


def chain(folder: ModelFolder, options: StageOptions, order: Order) -> list[float]:
    """Tokens a second of each round, both stages in this process."""
    ranges = even_cut(folder.shape.units, 2, inside_layer=False)
    stages = [PagedStage.load(cut(folder.xml, units), options) for units in ranges]
    prompt = order.prompts[0]
    return [chain_speed(stages, prompt, order.tokens, number) for number in range(order.rounds)]


def _pipeline(folder: ModelFolder, chosen: dict[str, Any]) -> Any:
    import openvino_genai

    return openvino_genai.LLMPipeline(str(folder.path), "CPU", **chosen)


def _greedy(tokens: int) -> Any:
    import openvino_genai

    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = tokens
    config.ignore_eos = True
    config.do_sample = False
    return config


def _tensor(prompt: list[int]) -> Any:
    import openvino as ov

    return ov.Tensor(np.array([prompt], dtype=np.int64))


if __name__ == "__main__":
    main()
