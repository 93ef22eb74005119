"""What repacking a GGUF costs: the comparison's text, its embedding and its two heads.

A GgufFile, the recipe and the tokenizer's folder enter; parts are compared as they are made, and an
Accuracy leaves. Called by the conversion.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshinfer.weights.accuracy import Accuracy, Comparison, compare, normalised, stored_text
from meshinfer.weights.cut import openvino_errors
from meshinfer.weights.gguf_file import GgufFile
from meshinfer.weights.gguf_layers import EMBEDDING, HEAD, LAST_NORM
from meshinfer.weights.gguf_parts import Part, end_values
from meshinfer.weights.recipe import Recipe

Array = NDArray[Any]

_MOST_POSITIONS, _FEWEST_POSITIONS = 512, 128
_PRODUCTS = 3e11
"""Weights times positions: 504 of SmolLM2 (all of the text), 168 of Qwen2.5 1.5B."""


class Measurement:
    """Parts are given in order, each once; a part whose step is kept from before is skipped.

    Raises StageFailed, ShardCorrupt, DiskFull everywhere.
    """

    def __init__(self, file: GgufFile, recipe: Recipe, tokenizer: Path, folder: Path) -> None:
        self._file = file
        self._recipe = recipe
        self._comparison = Comparison(folder)
        self._tokenizer = tokenizer

    def add(self, number: int, part: Part) -> None:
        """Part `number` of the row, from 0."""
        if self._comparison.has(number + 1):
            return
        if number == 0:
            self._begin()
        self._comparison.advance(number + 1, part.source, part.changed)

    def result(self, parts: int) -> Accuracy:
        """After all `parts`."""
        place = self._file.places[LAST_NORM]
        epsilon = float(self._file.header.of_architecture("attention.layer_norm_rms_epsilon"))
        weight = place.values()[0]
        source, changed = (
            normalised(states[0], weight, epsilon) for states in self._comparison.states(parts)
        )
        return compare(source, changed, self._heads())

    def _begin(self) -> None:
        tokens = _tokens(self._tokenizer)[: self._positions()]
        place = self._file.places[EMBEDDING]
        own = np.concatenate([place.values(int(token), 1) for token in tokens])
        self._comparison.begin(own, end_values(own, self._recipe))

    def _positions(self) -> int:
        weights = sum(place.rows * place.columns for place in self._file.places.values())
        return int(max(_FEWEST_POSITIONS, min(_MOST_POSITIONS, _PRODUCTS / weights)))

    def _heads(self) -> Iterator[tuple[Array, Array]]:
        place = self._file.places.get(HEAD) or self._file.places[EMBEDDING]
        for _, values in place.blocks():
            yield values, end_values(values, self._recipe)


def _tokens(tokenizer: Path) -> Array:
    import openvino_genai

    with openvino_errors("Reading the new tokenizer"):
        encoder = openvino_genai.Tokenizer(str(tokenizer))
        return np.array(encoder.encode(stored_text(), add_special_tokens=False).input_ids.data[0])
