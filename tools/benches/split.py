"""Splitting in one process: speed against openvino_genai on the same IR, and exactness.

Both sides run one stream on one thread with the same properties (precision, cache, dynamic
quantisation). They take turns, so that a busy moment of the machine hits both.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from meshinfer.core.request import GREEDY, ChatMessage
from meshinfer.core.step import Row, Step
from meshinfer.engine.configuration import StageOptions, properties
from meshinfer.engine.paged import PagedStage
from meshinfer.engine.sampling import DrawRow, draw
from meshinfer.engine.tokenizer import GenAiTokenizer
from meshinfer.node.even_cuts import even_cut
from meshinfer.node.verify import verify
from meshinfer.weights.cut import cut
from meshinfer.weights.folder import ModelFolder
from meshinfer.weights.obtain import catalogue_source
from meshinfer.weights.prepare import prepare
from tools.benches.cutting import measure
from tools.benches.options import BenchOptions
from tools.benches.report import Report

PROMPT = (ChatMessage("user", "Explain in detail how a bicycle stays upright."),)
ROUNDS = 5


def run(report: Report, options: BenchOptions) -> None:
    names = ["smollm2-135m"] if options.quick else ["smollm2-135m", "qwen2.5-coder-1.5b"]
    for name in names:
        folder = prepare(catalogue_source(name), options.models, None, lambda progress: None)
        parity(report, folder, tokens=48 if options.quick else 96, last=name == names[-1])
        exactness(report, folder, options.quick)
    cutting(report, folder)


def parity(report: Report, folder: ModelFolder, tokens: int, last: bool) -> None:
    """Tokens a second of 2, 3 and 4 stages over genai's. The contract's rows are the target's."""
    options = StageOptions(threads=1, cache_tokens=1024)
    prompt = GenAiTokenizer.load(folder.path).encode_chat(PROMPT)
    whole = genai_pipeline(folder, options)
    for count in (2, 3, 4):
        stages = [
            PagedStage.load(cut(folder.path / "openvino_model.xml", units), options)
            for units in even_cut(folder.shape.units, count, inside_layer=False)
        ]
        ours, theirs = [], []
        for number in range(ROUNDS):
            theirs.append(genai_speed(whole, tokens))
            ours.append(chain_speed(stages, prompt, tokens, number))
        name = f"split/parity/stages={count}"
        report.compare(
            name if last else f"{name}/{folder.model}",
            statistics.median(ours),
            "tokens/s",
            statistics.median(theirs),
            "openvino_genai",
        )
        for stage in stages:
            stage.close()


def genai_pipeline(folder: ModelFolder, options: StageOptions | None) -> Any:
    """openvino_genai on one thread, with our own properties or (None) its default ones."""
    import openvino_genai

    chosen = properties(options) if options is not None else {"INFERENCE_NUM_THREADS": 1}
    return openvino_genai.LLMPipeline(str(folder.path), "CPU", **chosen)


def genai_speed(pipeline: Any, tokens: int) -> float:
    """Tokens a second of the decode phase."""
    import openvino_genai

    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = tokens
    config.ignore_eos = True
    config.do_sample = False
    result = pipeline.generate([PROMPT[0].content], config)
    return 1000.0 / float(result.perf_metrics.get_tpot().mean)


def chain_speed(stages: list[PagedStage], prompt: list[int], tokens: int, sequence: int) -> float:
    """Tokens a second of the decode phase, stages called one after another in this process.

    Each call needs a `sequence` one higher than the last: it releases that one's cache.
    """
    position, new, began = 0, list(prompt), 0.0
    for number in range(tokens):
        released = (sequence - 1,) if number == 0 and sequence else ()
        step = Step(number, (Row(sequence, position, len(new), 1),), tuple(new), released)
        hidden = None
        for stage in stages:
            hidden = stage.forward(step, hidden)
        assert hidden is not None
        position += len(new)
        new = [draw(hidden, [DrawRow(GREEDY, position)])[0].token]
        if number == 0:
            began = time.perf_counter()
    return (tokens - 1) / (time.perf_counter() - began)


def cutting(report: Report, folder: ModelFolder) -> None:
    """Four stages of the last model, memory beyond the mapped file."""
    seconds, megabytes = measure(folder.path)
    report.absolute("split/cut_s", seconds, "s")
    report.absolute("split/cut_mb", megabytes, "MB")


def exactness(report: Report, folder: ModelFolder, quick: bool) -> None:
    """Logits of split and whole, bit for bit; one row a precision."""
    stages = (2, 3, 5) if quick else tuple(range(2, 8))
    result = verify(folder.path, stages=stages, steps=64 if quick else 200)
    for precision in ("f32", "bf16"):
        differences = [one.difference for one in result.checks if one.precision == precision]
        if differences:
            name = f"split/exact/{folder.model}/{precision}"
            report.absolute(name, max(differences), "difference")
