"""A llama-like decoder with random weights, small enough to compile in a fraction of a second.

Tests of the weights, engine and node packages build it instead of fetching a model. It has what
real exports have: a stateful key-value cache that `beam_idx` reorders, grouped queries, rotary
positions, a causal mask made from shapes, and a head that may share the embedding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13 as ops

Style = Literal["genai", "optimum"]
"""Whose habits the graph follows.

genai: mask and rotary parts read shapes of layer 0's normalised input and cache; norm is
1 / sqrt(mean(x^2)). optimum: they read shapes of `input_ids` and of layer 0's joined keys; norm is
a reciprocal Power; names look like `__module.model.layers.0...`.
"""


@dataclass(frozen=True, slots=True)
class TinySize:
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    vocabulary: int

    @property
    def head_size(self) -> int:
        return self.hidden // self.heads


def tiny_model(
    layers: int = 3,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    vocabulary: int = 256,
    seed: int = 0,
    tied: bool = True,
    style: Style = "genai",
) -> ov.Model:
    """Inputs `input_ids`, `attention_mask`, `position_ids` (i64 [batch, length]) and `beam_idx`
    (i32 [batch]); output `logits` (f32 [batch, length, vocabulary]). Equal arguments give equal
    weights. It passes OpenVINO's paged-attention transformation, at f32 without any loss."""
    size = TinySize(layers, hidden, heads, kv_heads, vocabulary)
    return _Builder(size, np.random.default_rng(seed), style).build(tied)


class _Builder:
    def __init__(self, size: TinySize, random: np.random.Generator, style: Style) -> None:
        self.size = size
        self.random = random
        self.style = style
        self.ids = _parameter("input_ids", [-1, -1], ov.Type.i64)
        self.attention_mask = _parameter("attention_mask", [-1, -1], ov.Type.i64)
        self.positions = _parameter("position_ids", [-1, -1], ov.Type.i64)
        self.beams = _parameter("beam_idx", [-1], ov.Type.i32)
        self.sinks: list[Any] = []
        self.batch = _dimension(ops.shape_of(self.ids), 0)
        self.mask: Any = None

    def build(self, tied: bool) -> ov.Model:
        size = self.size
        table = self._weight(size.vocabulary, size.hidden, 1.0)
        rows = ops.convert(self.ids, "i32")
        hidden = ops.gather(table, rows, _constant(0, np.int32))
        rotary = self._rotary()
        for layer in range(size.layers):
            hidden = self._attention(hidden, layer, rotary)
            hidden = self._feed_forward(hidden, layer)
        head = table if tied else self._weight(size.vocabulary, size.hidden)
        logits = ops.matmul(self._norm(hidden), head, False, True)
        result = ops.result(logits)
        result.output(0).set_names({"logits"})
        result.set_friendly_name("logits")
        parameters = [self.ids, self.attention_mask, self.positions, self.beams]
        model = ov.Model([result], self.sinks, parameters, "tiny")
        model.set_rt_info("8.0", ["runtime_options", "ACTIVATIONS_SCALE_FACTOR"])
        model.validate_nodes_and_infer_types()
        return model

    def _weight(self, rows: int, columns: int, scale: float | None = None) -> Any:
        spread = columns**-0.5 if scale is None else scale
        values = self.random.normal(0.0, spread, (rows, columns)).astype(np.float32)
        return ops.constant(values)

    def _linear(self, value: Any, rows: int, columns: int) -> Any:
        return ops.matmul(value, self._weight(rows, columns), False, True)

    def _norm(self, hidden: Any) -> Any:
        mean = ops.reduce_mean(
            ops.power(hidden, _constant([[[2.0]]])), _constant([-1], np.int32), True
        )
        biased = ops.add(mean, _constant([[[1e-5]]]))
        if self.style == "optimum":
            scale = ops.power(biased, _constant([[[-0.5]]]))
        else:
            scale = ops.divide(_constant([[[1.0]]]), ops.sqrt(biased))
        gain = self.random.uniform(0.5, 1.5, (1, 1, self.size.hidden)).astype(np.float32)
        return ops.multiply(ops.multiply(scale, hidden), ops.constant(gain))

    def _rotary(self) -> tuple[Any, Any]:
        half = self.size.head_size // 2
        frequencies = (10000.0 ** (-np.arange(half) / half)).astype(np.float32).reshape(1, half, 1)
        shape = ops.concat([self.batch, _constant([1], np.int64), _constant([1], np.int64)], 0)
        spread = ops.broadcast(ops.constant(frequencies), shape, broadcast_spec="BIDIRECTIONAL")
        places = ops.convert(ops.unsqueeze(self.positions, _constant(1, np.int64)), "f32")
        angles = ops.transpose(
            ops.matmul(spread, places, False, False), _constant([0, 2, 1], np.int32)
        )
        both = ops.concat([angles, angles], -1)
        axis = _constant(1, np.int64)
        return ops.unsqueeze(ops.cos(both), axis), ops.unsqueeze(ops.sin(both), axis)

    def _rotate(self, value: Any, rotary: tuple[Any, Any]) -> Any:
        half = self.size.head_size // 2
        one, axis = _constant([1], np.int64), _constant([3], np.int64)
        first = ops.slice(value, _constant([0], np.int64), _constant([half], np.int64), one, axis)
        end = _constant([2**62], np.int64)
        second = ops.slice(value, _constant([half], np.int64), end, one, axis)
        turned = ops.concat([ops.multiply(second, _constant([[[[-1.0]]]])), first], -1)
        return ops.add(ops.multiply(value, rotary[0]), ops.multiply(turned, rotary[1]))

    def _heads(self, value: Any, heads: int) -> Any:
        shape = _constant([0, 0, heads, self.size.head_size], np.int64)
        return ops.transpose(ops.reshape(value, shape, True), _constant([0, 2, 1, 3], np.int32))

    def _attention(self, hidden: Any, layer: int, rotary: tuple[Any, Any]) -> Any:
        size = self.size
        inner = size.heads * size.head_size
        normed = self._norm(hidden)
        query = self._rotate(
            self._heads(self._linear(normed, inner, size.hidden), size.heads), rotary
        )
        key_value = size.kv_heads * size.head_size
        new_key = self._heads(self._linear(normed, key_value, size.hidden), size.kv_heads)
        new_value = self._heads(self._linear(normed, key_value, size.hidden), size.kv_heads)
        past_key, keys = self._cache(self._rotate(new_key, rotary), layer, "key")
        _, values = self._cache(new_value, layer, "value")
        if self.mask is None:
            self.mask = self._causal_mask(normed, past_key, keys)
        mixed = ops.scaled_dot_product_attention(
            query, self._repeat(keys), self._repeat(values), self.mask
        )
        joined = ops.transpose(mixed, _constant([0, 2, 1, 3], np.int32))
        flat = ops.reshape(joined, _constant([0, 0, inner], np.int64), True)
        added = ops.add(hidden, self._linear(flat, size.hidden, inner))
        if self.style == "optimum":
            added.set_friendly_name(f"__module.model.layers.{layer}/aten::add/Add")
        return added

    def _cache(self, new: Any, layer: int, kind: str) -> tuple[Any, Any]:
        """The reordered past and the joined tensor, which is also what is kept."""
        size = self.size
        name = f"past_key_values.{layer}.{kind}present.{layer}.{kind}"
        tail = [_constant([extent], np.int64) for extent in (size.kv_heads, 0, size.head_size)]
        empty = ops.broadcast(_constant(0.0), ops.concat([self.batch, *tail], 0))
        shape = ov.PartialShape([-1, size.kv_heads, -1, size.head_size])
        stored = ops.read_value(empty, name, ov.Type.f32, shape)
        past = ops.gather(stored, self.beams, _constant(0, np.int64))
        joined = ops.concat([past, new], -2)
        self.sinks.append(ops.assign(joined, name))
        return past, joined

    def _repeat(self, value: Any) -> Any:
        """[batch, kv heads, length, size] -> [batch, heads, length, size]."""
        size = self.size
        groups = size.heads // size.kv_heads
        wide = ops.unsqueeze(value, _constant(2, np.int64))
        ones = _constant([1], np.int64)
        shape = ops.concat([ones, ones, _constant([groups], np.int64), ones, ones], 0)
        spread = ops.broadcast(wide, shape, broadcast_spec="BIDIRECTIONAL")
        return ops.reshape(spread, _constant([0, size.heads, -1, size.head_size], np.int64), True)

    def _causal_mask(self, normed: Any, past: Any, keys: Any) -> Any:
        """f32 [batch, 1, length, past + length]: 0 where a token may look, else very negative."""
        zero, one = _constant(0, np.int64), _constant(1, np.int64)
        if self.style == "optimum":
            length = _dimension(ops.shape_of(self.ids), 1, scalar=True)
            total = _dimension(ops.shape_of(keys), 2, scalar=True)
        else:
            length = _dimension(ops.shape_of(normed), 1, scalar=True)
            total = ops.add(_dimension(ops.shape_of(past), 2, scalar=True), length)
        columns = ops.range(zero, total, one, "i64")
        rows = ops.range(ops.subtract(total, length), total, one, "i64")
        seen = ops.less_equal(columns, ops.unsqueeze(rows, one))
        real = ops.not_equal(self.attention_mask, zero)
        wide = ops.unsqueeze(real, _constant([1, 2], np.int64))
        allowed = ops.logical_and(ops.unsqueeze(seen, _constant([0, 1], np.int64)), wide)
        return ops.select(allowed, _constant(0.0), _constant(-3e38))

    def _feed_forward(self, hidden: Any, layer: int) -> Any:
        size = self.size
        normed = self._norm(hidden)
        gate = ops.swish(self._linear(normed, 2 * size.hidden, size.hidden))
        wide = ops.multiply(gate, self._linear(normed, 2 * size.hidden, size.hidden))
        added = ops.add(hidden, self._linear(wide, size.hidden, 2 * size.hidden))
        if self.style == "optimum":
            added.set_friendly_name(f"__module.model.layers.{layer}/aten::add/Add_1")
        return added


def _parameter(name: str, shape: list[int], kind: ov.Type) -> Any:
    parameter = ops.parameter(shape, kind, name=name)
    parameter.output(0).set_names({name})
    return parameter


def _constant(value: Any, kind: Any = np.float32) -> Any:
    values: NDArray[Any] = np.array(value, kind)
    return ops.constant(values)


def _dimension(shape: Any, axis: int, scalar: bool = False) -> Any:
    index = _constant(axis if scalar else [axis], np.int64)
    return ops.gather(shape, index, _constant(0, np.int64))
