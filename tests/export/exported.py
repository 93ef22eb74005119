"""Whole and ranged exports of one checkpoint in this process, and what they compute."""

from __future__ import annotations

import gc
import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import transformers
from numpy.typing import NDArray

from meshinfer.weights.assembly import Assembly, LayerSpan
from meshinfer.weights.cut import read_model
from meshinfer.weights.export.compression import compress
from meshinfer.weights.export.graph import export_graph
from meshinfer.weights.export.part import PartMaker
from meshinfer.weights.export.range_model import load_config
from meshinfer.weights.export.settings import read_settings
from meshinfer.weights.export.tensors import CheckpointTensors
from meshinfer.weights.recipe import Recipe

EXACT = {
    "INFERENCE_PRECISION_HINT": "f32",
    "KV_CACHE_PRECISION": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
    "INFERENCE_NUM_THREADS": 1,
}
PROMPT = tuple(int(one) for one in np.random.default_rng(7).integers(3, 300, 21))
STEPS = ((5,), (77, 18, 204), (9,))
"""Behind the prompt: the cache is read by one token and by several."""


def export_whole(checkpoint: Path, folder: Path, recipe: Recipe) -> Path:
    """By transformers and optimum-intel alone, and NNCF at once on all of it."""
    gc.freeze()  # as the child does: collecting garbage is a quarter of the time otherwise
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype="auto")
    plain = export_graph(model.eval(), folder, recipe)
    whole = folder / "whole.xml"
    ov.save_model(compress(read_model(plain), recipe), whole, compress_to_fp16=False)
    return whole


def export_spans(
    checkpoint: Path, folder: Path, recipe: Recipe, spans: Sequence[LayerSpan]
) -> Path:
    """By ranges, as the child does, and joined."""
    tensors = CheckpointTensors.open(checkpoint, read_settings(checkpoint).layers)
    assembly = Assembly(folder, "test", spans)
    maker = PartMaker(load_config(checkpoint), tensors, recipe, assembly)
    for span in assembly.missing:
        gc.freeze()
        maker.make(span, folder / "scratch")
    assembly.finish()
    assert not (folder / "scratch").exists()
    return folder / "openvino_model.xml"


def spans_of(*borders: int) -> tuple[LayerSpan, ...]:
    return tuple(LayerSpan(first, end) for first, end in zip(borders, borders[1:], strict=False))


def logits(xml: Path) -> NDArray[np.float32]:
    """Of PROMPT and STEPS, one sequence."""
    compiled = ov.Core().compile_model(xml, "CPU", EXACT)
    request = compiled.create_infer_request()
    rows, seen = [], 0
    for tokens in (PROMPT, *STEPS):
        seen += len(tokens)
        given = {
            "input_ids": np.array([tokens], dtype=np.int64),
            "attention_mask": np.ones((1, seen), dtype=np.int64),
            "position_ids": np.arange(seen - len(tokens), seen, dtype=np.int64)[None],
            "beam_idx": np.zeros(1, dtype=np.int32),
        }
        wanted = {port.get_any_name() for port in compiled.inputs}
        answer = request.infer({name: given[name] for name in given if name in wanted})
        rows.append(np.array(answer[compiled.output(0)][0]))
    return np.concatenate(rows)


def torch_logits(checkpoint: Path) -> NDArray[np.float32]:
    """transformers' own, in f32, without a cache."""
    import torch

    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    tokens = [token for step in (PROMPT, *STEPS) for token in step]
    with torch.no_grad():
        found: NDArray[np.float32] = model.eval()(torch.tensor([tokens])).logits[0].numpy()
    return found


def constants(xml: Path, smallest: int = 200) -> set[tuple[str, tuple[int, ...], str]]:
    """Type, shape and digest of every constant with so many values."""
    found: Counter[tuple[str, tuple[int, ...], str]] = Counter()
    for node in read_model(xml).get_ordered_ops():
        if node.get_type_name() == "Constant" and int(np.prod(node.get_output_shape(0))) > smallest:
            data: Any = np.array(node.data)
            digest = hashlib.sha256(data.tobytes()).hexdigest()
            name = node.get_element_type().get_type_name()
            found[name, tuple(node.get_output_shape(0)), digest] += 1
    return set(found)
