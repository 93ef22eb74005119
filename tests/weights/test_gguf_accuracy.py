from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from meshinfer.weights.assembly import LayerSpan
from meshinfer.weights.gguf_accuracy import Measurement
from meshinfer.weights.gguf_file import GgufFile, open_gguf
from meshinfer.weights.gguf_parts import part_of
from meshinfer.weights.gguf_ranges import write_tokenizer
from meshinfer.weights.gguf_reader import read_tokenizer
from meshinfer.weights.recipe import Recipe, WeightFormat
from tests.weights.gguf_models import F16, make_gguf

pytestmark = [pytest.mark.openvino, pytest.mark.slow]


@pytest.fixture
def file(tmp_path: Path) -> GgufFile:
    make_gguf(tmp_path / "m.gguf", layers=2, tied=False, kinds={"": F16})
    write_tokenizer(open_gguf(tmp_path / "m.gguf"), tmp_path / "t.gguf")
    read_tokenizer(tmp_path / "t.gguf")
    return open_gguf(tmp_path / "m.gguf")


def _measured(file: GgufFile, recipe: Recipe, folder: Path) -> Measurement:
    measured = Measurement(file, recipe, file.path.parent, folder)
    for number, span in enumerate((LayerSpan(0, 1), LayerSpan(1, 2))):
        with part_of(file, span, 2, recipe, file.path.parent / "range") as part:
            measured.add(number, part)
    return measured


def test_the_same_weights_differ_by_nothing(file: GgufFile, tmp_path: Path) -> None:
    accuracy = _measured(file, Recipe(WeightFormat.F16), tmp_path / "states").result(2)
    assert (accuracy.divergence, accuracy.agreement) == (0.0, 1.0)
    assert accuracy.positions > 100


def test_fewer_bits_cost_more(file: GgufFile, tmp_path: Path) -> None:
    eight = _measured(file, Recipe(WeightFormat.INT8), tmp_path / "8").result(2)
    sixteen = _measured(file, Recipe(WeightFormat.BF16), tmp_path / "16").result(2)
    assert 0 < sixteen.divergence < eight.divergence < 0.1
    assert eight.agreement < 1


def test_a_part_that_was_measured_is_not_computed_again(file: GgufFile, tmp_path: Path) -> None:
    recipe = Recipe(WeightFormat.F16)
    first = Measurement(file, recipe, tmp_path, tmp_path / "states")
    with part_of(file, LayerSpan(0, 1), 2, recipe, tmp_path / "range") as part:
        first.add(0, part)
    kept = np.load(tmp_path / "states" / "1.npz")["source"]
    again = Measurement(file, recipe, tmp_path / "no tokenizer", tmp_path / "states")
    with part_of(file, LayerSpan(0, 1), 2, recipe, tmp_path / "range") as part:
        again.add(0, part)  # would fail without a tokenizer if it began anew
    assert np.array_equal(np.load(tmp_path / "states" / "1.npz")["source"], kept)
