"""Runs a model, or its stages one behind the other, as the engine would: paged, at plain f32.

A small stand-in for the engine's paged stage, so that the weights lane proves its cuts by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino._offline_transformations import paged_attention_transformation

from meshinfer.core.model import UnitRange
from meshinfer.weights.cut import cut, read_model
from meshinfer.weights.cut_points import find_units

BLOCK, BLOCKS = 32, 16
PLAIN = {
    "INFERENCE_NUM_THREADS": 1,
    "INFERENCE_PRECISION_HINT": "f32",
    "KV_CACHE_PRECISION": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
}
Array = NDArray[Any]


class PagedPart:
    def __init__(self, model: Any) -> None:
        self._paged = bool(model.get_variables())
        hidden = [p for p in model.get_parameters() if p.get_friendly_name() == "inputs_embeds"]
        width = list(hidden[0].get_partial_shape())[-1].get_length() if hidden else 0
        if self._paged:
            paged_attention_transformation(model)
        if hidden:
            shape = [-1, width] if self._paged else [-1, 1, width]
            hidden[0].set_partial_shape(ov.PartialShape(shape))
        model.validate_nodes_and_infer_types()
        compiled = ov.Core().compile_model(model, "CPU", PLAIN)
        self._request = compiled.create_infer_request()
        self._names = {name for port in compiled.inputs for name in port.names}
        for port in compiled.inputs:
            if "_cache." in port.any_name:
                axes = [axis.get_length() for axis in list(port.partial_shape)[1:]]
                cache = ov.Tensor(port.element_type, ov.Shape([BLOCKS, *axes]))
                self._request.set_tensor(port.any_name, cache)

    def step(self, value: Array, past: int) -> Array:
        """Tokens [n] or activations [n, hidden] of one sequence -> [n, width]."""
        count = len(value)
        used = -(-(past + count) // BLOCK)
        feed = {
            "input_ids": value,
            "inputs_embeds": value,
            "position_ids": np.arange(past, past + count, dtype=np.int64),
            "past_lens": np.array([past], np.int32),
            "subsequence_begins": np.array([0, count], np.int32),
            "block_indices": np.arange(used, dtype=np.int32),
            "block_indices_begins": np.array([0, used], np.int32),
            "max_context_len": np.array(past + count, np.int32),
        }
        if not self._paged:
            feed["input_ids"] = feed["inputs_embeds"] = np.ascontiguousarray(value[:, None])
        for name in self._names & feed.keys():
            self._request.set_tensor(name, ov.Tensor(feed[name]))
        self._request.infer()
        result = self._request.get_output_tensor(0).data.copy()
        return result.reshape(count, -1)


def logits(parts: Sequence[PagedPart], prompt: Array, steps: int) -> Array:
    """All rows of a prefill and `steps` greedy steps."""
    rows, past, value = [], 0, prompt
    for _ in range(steps + 1):
        hidden = value
        for part in parts:
            hidden = part.step(hidden, past)
        rows.append(hidden)
        past += len(value)
        value = np.array([int(hidden[-1].argmax())], np.int64)
    return np.concatenate(rows)


def whole(xml: Path) -> list[PagedPart]:
    return [PagedPart(read_model(xml))]


def parts(xml: Path, borders: Sequence[int]) -> list[PagedPart]:
    ends = [0, *borders, unit_count(xml)]
    ranges = [UnitRange(first, end) for first, end in zip(ends, ends[1:], strict=False)]
    return [PagedPart(cut(xml, units)) for units in ranges]


def unit_count(xml: Path) -> int:
    return len(find_units(read_model(xml)))
