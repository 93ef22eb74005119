"""A tiny deterministic stage in NumPy, with the contract of a real one: tests, demos, CI.

A causal computation in which every logit depends on every cached token and its position, cut at the
same units as a real model. All numbers are small integers held in floating point, so that sums are
exact in any order: k chained stages equal one bit for bit, and a row never feels its neighbours.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshinfer.core.ids import Digest, ModelId
from meshinfer.core.model import ModelShape, Unit, UnitKind, UnitRange
from meshinfer.core.step import Row, Step
from meshinfer.engine.blocks import BlockTable, Chain, Placement
from meshinfer.engine.stage import StageShape
from meshinfer.engine.step_arrays import token_count, wanted_tokens
from meshinfer.engine.trees import positions, visible
from meshinfer.errors import StageFailed

_MODULUS = 251
"""Prime, and below 256: activations are exact in bf16 too, should somebody round them."""

_SCORES = 17
"""Attention weights are 1.._SCORES, never 0 modulo _MODULUS: every cached token has an effect."""

_LOGIT_STEPS = 1009
_LOGIT_SCALE = 64.0
"""Logits lie in 0.._LOGIT_STEPS / _LOGIT_SCALE = 15.8, exactly representable in f32."""

_CONTEXT_LENGTH = 1 << 14

Integers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ToyModel:
    """What a toy model is made of; equal values are equal models."""

    layers: int = 4
    hidden_size: int = 16
    vocabulary_size: int = 258
    seed: int = 0
    front: int = 0
    """Numbers a token that are looked up in front for each layer and cross every cut up to the
    layer's feed-forward unit, which reads them: edges then differ in width."""

    def shape(self) -> ModelShape:
        """As the planner sees it: embedding, two units a layer, head."""
        hidden = self.hidden_size
        crossing = [4 * self.width(end) for end in range(1, 2 * self.layers + 2)]
        table = 8 * self.vocabulary_size * hidden
        units = [Unit(UnitKind.EMBEDDING, 0, table, 0, crossing[0])]
        for layer in range(self.layers):
            matrix, first = 8 * hidden * hidden, 2 * layer + 1
            units.append(Unit(UnitKind.ATTENTION, layer, 3 * matrix, 16 * hidden, crossing[first]))
            units.append(Unit(UnitKind.FEED_FORWARD, layer, matrix, 0, crossing[first + 1]))
        logits = 4 * self.vocabulary_size
        units.append(Unit(UnitKind.HEAD, self.layers, table, 0, logits))
        return ModelShape(
            model=ModelId("toy"),
            digest=Digest(hashlib.sha256(repr(self).encode()).hexdigest()),
            units=tuple(units),
            layers=self.layers,
            hidden_size=hidden,
            vocabulary_size=self.vocabulary_size,
            context_length=_CONTEXT_LENGTH,
        )

    def width(self, end: int) -> int:
        """Numbers a token that cross behind the first `end` units; 0 at both ends of the model."""
        if end in (0, 2 * self.layers + 2):
            return 0
        read = (end - 1) // 2  # layers whose feed-forward unit is in front of the cut
        return self.hidden_size + (self.layers - read) * self.front

    def weights(self, unit: int, matrices: int, rows: int, columns: int) -> Integers:
        """[matrices, rows, columns] integers that depend on the seed and the unit only."""
        random = np.random.Generator(np.random.Philox(counter=unit, key=self.seed))
        return random.integers(1, _MODULUS, (matrices, rows, columns)).astype(np.float64)


def _modulo(values: Integers) -> Integers:
    result: Integers = values % _MODULUS
    return result


class _Attention:
    """One attention unit with its own paged cache of keys and values."""

    def __init__(self, toy: ToyModel, unit: int, blocks: int, block_size: int) -> None:
        self._projections = toy.weights(unit, 3, toy.hidden_size, toy.hidden_size)
        self._slope = 2 * unit + 1
        # Poisoned: a block that is read before it is written shows in every logit.
        shape = (blocks, block_size, toy.hidden_size)
        self.keys = np.full(shape, np.nan)
        self.values = np.full(shape, np.nan)

    def prepare(self, placement: Placement) -> None:
        """Blocks are copied, then slots moved."""
        for cache in (self.keys, self.values):
            for copy in placement.copies:
                cache[copy.target] = cache[copy.source]
            for move in placement.moves:
                cache[move.target_block, move.target_slot] = cache[
                    move.source_block, move.source_slot
                ]

    def compute(self, hidden: Integers, step: Step, chains: tuple[Chain, ...]) -> Integers:
        """[tokens, hidden] in and out. Row by row, as each attends to its own cache."""
        queries, keys, values = (hidden @ self._projections) % _MODULUS
        mixed = np.empty_like(hidden)
        first = 0
        for row, chain in zip(step.rows, chains, strict=True):
            part = slice(first, first + row.count)
            mixed[part] = self._row(queries[part], keys[part], values[part], row, chain)
            first += row.count
        return _modulo(hidden + mixed)

    def _row(
        self,
        queries: Integers,
        new_keys: Integers,
        new_values: Integers,
        row: Row,
        chain: Chain,
    ) -> Integers:
        block_size = self.keys.shape[1]
        new = np.arange(row.position, chain.length)
        stand = np.concatenate([np.arange(row.position), positions(row)])  # of every slot
        blocks = np.array(chain.blocks, np.intp)
        self.keys[blocks[new // block_size], new % block_size] = new_keys
        self.values[blocks[new // block_size], new % block_size] = new_values
        keys = self.keys[blocks].reshape(-1, self.keys.shape[2])[: chain.length]
        values = self.values[blocks].reshape(-1, self.values.shape[2])[: chain.length]
        distances = stand[row.position :, None] - stand
        seen = distances >= 0
        if row.parents:
            seen[:, row.position :] = visible(row.parents)
        scores = (queries @ keys.T + self._slope * distances) % _SCORES + 1
        # At most 2**14 tokens x 17 x 250: exact in float64 by a wide margin.
        return _modulo(np.where(seen, scores, 0) @ values)


class ToyStage:
    """The units of a toy model that one PC computes. Implements engine.stage.Stage."""

    def __init__(
        self, units: UnitRange, toy: ToyModel, cache_tokens: int, block_size: int = 16
    ) -> None:
        last_unit = 2 * toy.layers + 1
        if units.end > last_unit + 1:
            raise StageFailed(f"Units {units} are not in a model of {last_unit + 1} units.")
        blocks = cache_tokens // block_size
        self._shape = StageShape(
            first=units.first == 0,
            last=units.end == last_unit + 1,
            precision="f32",
            input_width=toy.width(units.first),
            output_width=toy.width(units.end),
            vocabulary_size=toy.vocabulary_size,
            cache_tokens=blocks * block_size,
            block_size=block_size,
            trees=True,
        )
        self._table = BlockTable(blocks, block_size)
        self._toy = toy
        vocabulary, hidden = toy.vocabulary_size, toy.hidden_size
        self._embedding = (
            toy.weights(0, 1, vocabulary, toy.width(1))[0] if self._shape.first else None
        )
        self._head = toy.weights(last_unit, 1, hidden, vocabulary)[0] if self._shape.last else None
        inner = range(max(units.first, 1), min(units.end, last_unit))
        self._layers: list[_Attention | Integers] = [
            _Attention(toy, unit, blocks, block_size)
            if unit % 2
            else toy.weights(unit, 1, hidden, hidden)[0]
            for unit in inner
        ]
        self._closed = False

    @property
    def shape(self) -> StageShape:
        return self._shape

    def forward(self, step: Step, hidden: NDArray[Any] | None) -> NDArray[Any]:
        """See engine.stage.Stage. Raises StageFailed; a refused step only releases."""
        if self._closed:
            raise StageFailed("The stage is closed.", "Load it again.")
        self._table = self._table.released(step.released)
        state = self._enter(step, hidden)
        if not self._shape.trees and any(row.parents for row in step.rows):
            raise StageFailed("A token tree came to a stage that has none.", "Send chains.")
        placement = self._table.placed(step.rows)
        width = self._toy.hidden_size
        for layer in self._layers:
            if isinstance(layer, _Attention):
                layer.prepare(placement)
                state[:, :width] = layer.compute(state[:, :width], step, placement.chains)
            else:
                state = self._feed_forward(state, layer)
        self._table = placement.table
        return self._leave(step, state)

    def _feed_forward(self, state: Integers, matrix: Integers) -> Integers:
        """[tokens, hidden + carried]: the first of what is carried is read, and ends here."""
        width, front = self._toy.hidden_size, self._toy.front
        hidden, own, later = np.split(state, [width, width + front], axis=1)
        mixed = hidden + _modulo(hidden @ matrix) + own.sum(axis=1, keepdims=True)
        return np.concatenate([_modulo(_modulo(mixed) ** 2), later], axis=1)

    def keep(self, lengths: Mapping[int, int]) -> None:
        self._table = self._table.kept(lengths)

    def cached(self, sequence: int) -> int:
        return self._table.chain(sequence).length

    def refuse_trees(self) -> None:
        self._shape = replace(self._shape, trees=False)

    def close(self) -> None:
        self._closed = True
        self._layers.clear()
        self._embedding = self._head = None

    def _enter(self, step: Step, hidden: NDArray[Any] | None) -> Integers:
        tokens = token_count(step)
        if self._embedding is not None:
            ids = np.array(step.tokens, np.int64)
            if tokens and not 0 <= ids.min() <= ids.max() < len(self._embedding):
                raise StageFailed("A token id is not in the vocabulary.")
            embedded: Integers = self._embedding[ids]
            return embedded
        if hidden is None or hidden.shape != (tokens, self._shape.input_width):
            raise StageFailed(f"Activations of {tokens} tokens were due.")
        return hidden.astype(np.float64)

    def _leave(self, step: Step, state: Integers) -> NDArray[Any]:
        if self._head is None:
            return state.astype(np.float32)
        logits: Integers = (state[wanted_tokens(step)] @ self._head) % _LOGIT_STEPS
        return (logits / _LOGIT_SCALE).astype(np.float32)
