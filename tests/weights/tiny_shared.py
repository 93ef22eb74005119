"""A tiny decoder of the Gemma 3n and Gemma 4 kind: more than the hidden state crosses its cuts.

Later layers read the keys and values of earlier ones instead of projecting their own, and every
layer reads an input of its own that is computed in front from the token ids.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from tests.weights.tiny import Style, TinyBuilder, TinySize, constant

KINDS = 2
"""Layers are of two kinds in turn; one that shares reads the last cache of its own kind."""


def tiny_shared(
    layers: int = 6,
    shared: int = 3,
    front: int = 8,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    vocabulary: int = 256,
    seed: int = 0,
    tied: bool = True,
    style: Style = "optimum",
    scale: float = 1.0,
    again: bool = False,
) -> ov.Model:
    """As tiny_model; the last `shared` layers have no cache of their own (at least two have), and
    each layer reads `front` numbers a token made in front; 0 leaves that out. With `again` the
    head also reads the embeddings. Equal arguments give equal weights."""
    size = TinySize(layers, hidden, heads, kv_heads, vocabulary)
    builder = SharedBuilder(size, np.random.default_rng(seed), style)
    builder.scale = scale
    builder.own = max(layers - shared, min(KINDS, layers))
    builder.width = front
    builder.again = again
    return builder.build(tied)


class SharedBuilder(TinyBuilder):
    """Changes where keys and values come from, and what is made in front of the layers."""

    own: int  # layers with a cache of their own
    width: int
    again: bool

    def _front(self, rows: Any, hidden: Any) -> Any:
        """[batch, length, layers, width], from a table of its own and from the embeddings."""
        size, everything = self.size, self.size.layers * self.width
        self.caches: dict[int, tuple[Any, Any]] = {}
        self.embedded = hidden
        if self.width:
            table = self._weight(size.vocabulary, everything, 1.0)
            looked_up = ops.gather(table, rows, constant(0, np.int32))
            projected = self._linear(hidden, everything, size.hidden)
            both = ops.add(self._apart(looked_up), self._apart(projected))
            both.set_friendly_name("per_layer_inputs")
            self.inputs = both
        return hidden

    def _apart(self, value: Any) -> Any:
        shape = constant([0, 0, self.size.layers, self.width], np.int64)
        return ops.reshape(value, shape, True)

    def _layer(self, hidden: Any, layer: int, rotary: tuple[Any, Any]) -> Any:
        size = self.size
        hidden = super()._layer(hidden, layer, rotary)
        if self.width:
            own = ops.gather(self.inputs, constant(layer, np.int64), constant(2, np.int64))
            gate = ops.swish(self._linear(hidden, self.width, size.hidden))
            added = self._linear(ops.multiply(gate, own), size.hidden, self.width)
            hidden = ops.add(hidden, added)
        if self.again and layer == size.layers - 1:
            hidden = ops.add(hidden, self.embedded)
        return hidden

    def _keys_and_values(self, normed: Any, layer: int, rotary: tuple[Any, Any]) -> tuple[Any, Any]:
        if layer < self.own:
            self.caches[layer] = super()._keys_and_values(normed, layer, rotary)
            return self.caches[layer]
        owners = [one for one in range(self.own) if one % KINDS == layer % KINDS]
        return self.caches[owners[-1]]
