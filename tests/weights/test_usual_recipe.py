"""A small model keeps eight bits, a large one gets four, an IR stays as it is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from meshinfer.weights.checkpoint import Checkpoint, look
from meshinfer.weights.recipe import Recipe, WeightFormat
from meshinfer.weights.selection import Kind, SourceFile
from meshinfer.weights.usual_recipe import SMALL, count_weights, usual_recipe
from tests.weights.gguf_models import make_gguf
from tests.weights.safetensors_writer import table_bytes


def half_precision(folder: Path, *counts: int) -> Checkpoint:
    """A checkpoint in as many files, each with a tensor of so many numbers; its data are holes."""
    files = []
    for number, count in enumerate(counts):
        table = {"w": {"dtype": "F16", "shape": [count], "data_offsets": [0, 2 * count]}}
        path = folder / f"model-{number}.safetensors"
        path.write_bytes(table_bytes(table))
        os.truncate(path, path.stat().st_size + 2 * count)
        files.append(SourceFile(path.name, path.stat().st_size))
    return Checkpoint(Kind.SAFETENSORS, folder, tuple(files))


@pytest.mark.parametrize(
    ("counts", "recipe"),
    [
        ((1000,), Recipe(WeightFormat.INT8)),
        ((SMALL - 1,), Recipe(WeightFormat.INT8)),
        ((SMALL,), Recipe()),
        ((SMALL // 2, SMALL // 2), Recipe()),
    ],
)
def test_the_number_of_weights_decides(
    tmp_path: Path, counts: tuple[int, ...], recipe: Recipe
) -> None:
    checkpoint = half_precision(tmp_path, *counts)
    assert count_weights(checkpoint) == sum(counts)
    assert usual_recipe(checkpoint) == recipe


def test_a_gguf_is_counted_by_its_table(tmp_path: Path) -> None:
    make_gguf(tmp_path / "t.gguf")
    checkpoint = look(tmp_path / "t.gguf")
    assert 0 < count_weights(checkpoint) < 1_000_000
    assert usual_recipe(checkpoint) == Recipe(WeightFormat.INT8)


def test_an_ir_is_kept() -> None:
    assert usual_recipe(Checkpoint(Kind.IR, Path("ir"), ())) == Recipe(WeightFormat.ORIGINAL)
