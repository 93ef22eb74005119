"""The form of weights that a model gets when nobody asks for another: by how many it has.

A Checkpoint enters, a Recipe leaves. Called by `prepare`.
"""

from __future__ import annotations

from math import prod

from meshinfer.weights.checkpoint import Checkpoint
from meshinfer.weights.gguf_file import open_gguf
from meshinfer.weights.recipe import Recipe, WeightFormat
from meshinfer.weights.safetensors_header import read_header
from meshinfer.weights.selection import Kind

SMALL = 400_000_000
"""Weights. Rounding to 4 bits costs a small model far more than a large one: KL 0.43 with 135
million, 0.08 with half a billion, 0.07 with one and a half (docs/performance.md). A model below
this is fast in 8 bits too."""


def usual_recipe(checkpoint: Checkpoint) -> Recipe:
    """Raises ShardCorrupt when the tables of tensors cannot be read."""
    if checkpoint.kind is Kind.IR:
        return Recipe(WeightFormat.ORIGINAL)
    return Recipe(WeightFormat.INT8) if count_weights(checkpoint) < SMALL else Recipe()


def count_weights(checkpoint: Checkpoint) -> int:
    """Numbers in all tensors of a GGUF or safetensors checkpoint."""
    if checkpoint.kind is Kind.GGUF:
        header = open_gguf(checkpoint.path).header
        return sum(prod(tensor.shape) for tensor in header.tensors)
    files = [file.name for file in checkpoint.files if file.name.endswith(".safetensors")]
    tables = [read_header(checkpoint.path / name) for name in files]
    return sum(prod(tensor.shape) for table in tables for tensor in table.tensors)
