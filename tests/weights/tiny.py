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
    scale: float = 1.0,
    parallel: bool = False,
    uneven: bool = False,
) -> ov.Model:
    """Inputs `input_ids`, `attention_mask`, `position_ids` (i64 [batch, length]) and `beam_idx`
    (i32 [batch]); output `logits` (f32 [batch, length, vocabulary]). Equal arguments give equal
    weights. It passes OpenVINO's paged-attention transformation, at f32 without any loss.

    `scale` multiplies the embeddings (gemma, granite). `parallel` lets the feed-forward part read
    what the attention reads (falcon, phi, cohere): there is one cut point a layer then. With
    `uneven` every second layer has a single key-value head (gemma 4: heads of another size)."""
    size = TinySize(layers, hidden, heads, kv_heads, vocabulary)
    builder = TinyBuilder(size, np.random.default_rng(seed), style)
    builder.scale, builder.parallel, builder.uneven = scale, parallel, uneven
    return builder.build(tied)


class TinyBuilder:
    """Makes the graph; subclasses change what they name in their own docstrings."""

    scale = 1.0
    parallel = False
    uneven = False

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
        hidden = ops.gather(table, rows, constant(0, np.int32))
        if self.scale != 1.0:
            hidden = ops.multiply(hidden, constant(self.scale))
        rotary = self._rotary()
        hidden = self._front(rows, hidden)
        for layer in range(size.layers):
            hidden = self._layer(hidden, layer, rotary)
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

    def _front(self, rows: Any, hidden: Any) -> Any:
        """The hidden state that the first layer reads, from token ids and embeddings."""
        return hidden

    def _layer(self, hidden: Any, layer: int, rotary: tuple[Any, Any]) -> Any:
        attended = self._attention(hidden, layer, rotary)
        if not self.parallel:
            return self._feed_forward(attended, layer)
        return ops.add(attended, self._feed_forward(hidden, layer))

    def _weight(self, rows: int, columns: int, scale: float | None = None) -> Any:
        spread = columns**-0.5 if scale is None else scale
        values = self.random.normal(0.0, spread, (rows, columns)).astype(np.float32)
        return ops.constant(values)

    def _linear(self, value: Any, rows: int, columns: int) -> Any:
        return ops.matmul(value, self._weight(rows, columns), False, True)

    def _norm(self, hidden: Any) -> Any:
        mean = ops.reduce_mean(
            ops.power(hidden, constant([[[2.0]]])), constant([-1], np.int32), True
        )
        biased = ops.add(mean, constant([[[1e-5]]]))
        if self.style == "optimum":
            scale = ops.power(biased, constant([[[-0.5]]]))
        else:
            scale = ops.divide(constant([[[1.0]]]), ops.sqrt(biased))
        gain = self.random.uniform(0.5, 1.5, (1, 1, self.size.hidden)).astype(np.float32)
        return ops.multiply(ops.multiply(scale, hidden), ops.constant(gain))

    def _rotary(self) -> tuple[Any, Any]:
        half = self.size.head_size // 2
        frequencies = (10000.0 ** (-np.arange(half) / half)).astype(np.float32).reshape(1, half, 1)
        shape = ops.concat([self.batch, constant([1], np.int64), constant([1], np.int64)], 0)
        spread = ops.broadcast(ops.constant(frequencies), shape, broadcast_spec="BIDIRECTIONAL")
        places = ops.convert(ops.unsqueeze(self.positions, constant(1, np.int64)), "f32")
        angles = ops.transpose(
            ops.matmul(spread, places, False, False), constant([0, 2, 1], np.int32)
        )
        both = ops.concat([angles, angles], -1)
        axis = constant(1, np.int64)
        return ops.unsqueeze(ops.cos(both), axis), ops.unsqueeze(ops.sin(both), axis)

    def _rotate(self, value: Any, rotary: tuple[Any, Any]) -> Any:
        half = self.size.head_size // 2
        one, axis = constant([1], np.int64), constant([3], np.int64)
        first = ops.slice(value, constant([0], np.int64), constant([half], np.int64), one, axis)
        end = constant([2**62], np.int64)
        second = ops.slice(value, constant([half], np.int64), end, one, axis)
        turned = ops.concat([ops.multiply(second, constant([[[[-1.0]]]])), first], -1)
        return ops.add(ops.multiply(value, rotary[0]), ops.multiply(turned, rotary[1]))

    def _heads(self, value: Any, heads: int) -> Any:
        shape = constant([0, 0, heads, self.size.head_size], np.int64)
        return ops.transpose(ops.reshape(value, shape, True), constant([0, 2, 1, 3], np.int32))

    def _attention(self, hidden: Any, layer: int, rotary: tuple[Any, Any]) -> Any:
        size = self.size
        inner = size.heads * size.head_size
        normed = self._norm(hidden)
        query = self._rotate(
            self._heads(self._linear(normed, inner, size.hidden), size.heads), rotary
        )
        keys, values = self._keys_and_values(normed, layer, rotary)
        mixed = ops.scaled_dot_product_attention(
            query, self._repeat(keys), self._repeat(values), self.mask
        )
        joined = ops.transpose(mixed, constant([0, 2, 1, 3], np.int32))
        flat = ops.reshape(joined, constant([0, 0, inner], np.int64), True)
        added = ops.add(hidden, self._linear(flat, size.hidden, inner))
        if self.style == "optimum":
            added.set_friendly_name(f"__module.model.layers.{layer}/aten::add/Add")
        return added

    def _keys_and_values(self, normed: Any, layer: int, rotary: tuple[Any, Any]) -> tuple[Any, Any]:
        """As long as the cache, [batch, kv heads, past + length, head size]."""
        size = self.size
        heads = self._kv_heads(layer)
        width = heads * size.head_size
        new_key = self._heads(self._linear(normed, width, size.hidden), heads)
        new_value = self._heads(self._linear(normed, width, size.hidden), heads)
        past_key, keys = self._cache(self._rotate(new_key, rotary), layer, "key")
        _, values = self._cache(new_value, layer, "value")
        if self.mask is None:
            self.mask = self._causal_mask(normed, past_key, keys)
        return keys, values

    def _kv_heads(self, layer: int) -> int:
        return 1 if self.uneven and layer % 2 else self.size.kv_heads

    def _cache(self, new: Any, layer: int, kind: str) -> tuple[Any, Any]:
        """The reordered past and the joined tensor, which is also what is kept."""
        size, heads = self.size, self._kv_heads(layer)
        name = f"past_key_values.{layer}.{kind}present.{layer}.{kind}"
        tail = [constant([extent], np.int64) for extent in (heads, 0, size.head_size)]
        empty = ops.broadcast(constant(0.0), ops.concat([self.batch, *tail], 0))
        shape = ov.PartialShape([-1, heads, -1, size.head_size])
        stored = ops.read_value(empty, name, ov.Type.f32, shape)
        past = ops.gather(stored, self.beams, constant(0, np.int64))
        joined = ops.concat([past, new], -2)
        self.sinks.append(ops.assign(joined, name))
        return past, joined

    def _repeat(self, value: Any) -> Any:
        """[batch, kv heads, length, size] -> [batch, heads, length, size]."""
        size = self.size
        groups = size.heads // value.get_output_partial_shape(0)[1].get_length()
        wide = ops.unsqueeze(value, constant(2, np.int64))
        ones = constant([1], np.int64)
        shape = ops.concat([ones, ones, constant([groups], np.int64), ones, ones], 0)
        spread = ops.broadcast(wide, shape, broadcast_spec="BIDIRECTIONAL")
        return ops.reshape(spread, constant([0, size.heads, -1, size.head_size], np.int64), True)

    def _causal_mask(self, normed: Any, past: Any, keys: Any) -> Any:
        """f32 [batch, 1, length, past + length]: 0 where a token may look, else very negative."""
        zero, one = constant(0, np.int64), constant(1, np.int64)
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
        wide = ops.unsqueeze(real, constant([1, 2], np.int64))
        allowed = ops.logical_and(ops.unsqueeze(seen, constant([0, 1], np.int64)), wide)
        return ops.select(allowed, constant(0.0), constant(-3e38))

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


def constant(value: Any, kind: Any = np.float32) -> Any:
    values: NDArray[Any] = np.array(value, kind)
    return ops.constant(values)


def _dimension(shape: Any, axis: int, scalar: bool = False) -> Any:
    index = constant(axis if scalar else [axis], np.int64)
    return ops.gather(shape, index, constant(0, np.int64))
