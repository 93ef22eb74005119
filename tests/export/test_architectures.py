"""Every architecture that we promise, through the real exporter: by range it is what it is whole,
it is what transformers computes, and it splits exactly.

Ranges have odd lengths and begin at odd layers, so that whatever a model decides by the number of a
layer must be right.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from meshinfer.node.verify import verify
from meshinfer.weights.export.graph import refuse_unsupported
from meshinfer.weights.recipe import Recipe, WeightFormat
from tests.export.exported import (
    constants,
    export_spans,
    export_whole,
    logits,
    spans_of,
    torch_logits,
)
from tests.export.tiny_checkpoints import ARCHITECTURES, make_checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.openvino]

TWO, THREE = spans_of(0, 1, 4), spans_of(0, 1, 4, 5)
ORIGINAL = Recipe(WeightFormat.ORIGINAL)


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_ranges_are_the_whole_and_split_exactly(architecture: str, tmp_path: Path) -> None:
    refuse_unsupported(architecture)
    checkpoint = make_checkpoint(tmp_path / "checkpoint", architecture, num_hidden_layers=4)
    whole = export_whole(checkpoint, tmp_path / "whole", ORIGINAL)
    ranged = export_spans(checkpoint, tmp_path / "ranged", ORIGINAL, TWO)
    expected = torch_logits(checkpoint)
    by_range = logits(ranged)
    assert np.abs(by_range - expected).max() < 2e-5 * np.abs(expected).max()
    assert np.array_equal(by_range, logits(whole))
    assert constants(ranged) == constants(whole)
    assert verify(ranged, stages=(3,), precisions=("f32",), steps=8).difference == 0.0


@pytest.mark.parametrize(
    ("architecture", "recipe"),
    [
        ("llama", Recipe(WeightFormat.INT4, group_size=32)),
        ("qwen2", Recipe(WeightFormat.INT4_ASYM, group_size=64)),
        ("qwen3", Recipe(WeightFormat.INT4, group_size=32, awq=True)),
        ("mixtral", Recipe(WeightFormat.INT4)),
        ("granite", Recipe(WeightFormat.INT8)),
    ],
    ids=str,
)
def test_ranges_are_compressed_as_the_whole_is(
    architecture: str, recipe: Recipe, tmp_path: Path
) -> None:
    checkpoint = make_checkpoint(tmp_path / "checkpoint", architecture)
    whole = export_whole(checkpoint, tmp_path / "whole", recipe)
    ranged = export_spans(checkpoint, tmp_path / "ranged", recipe, THREE)
    assert constants(ranged) == constants(whole)
    assert np.array_equal(logits(ranged), logits(whole))
    assert verify(ranged, stages=(2,), precisions=("f32",), steps=4).difference == 0.0


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_other_types_of_numbers_are_kept(dtype: str, tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "checkpoint", "qwen2", dtype)
    whole = export_whole(checkpoint, tmp_path / "whole", ORIGINAL)
    ranged = export_spans(checkpoint, tmp_path / "ranged", ORIGINAL, THREE)
    assert constants(ranged) == constants(whole)
    assert np.array_equal(logits(ranged), logits(whole))


@pytest.mark.parametrize(("form", "kind"), [(WeightFormat.F16, "f16"), (WeightFormat.BF16, "bf16")])
def test_experts_are_kept_in_half_precision_too(
    form: WeightFormat, kind: str, tmp_path: Path
) -> None:
    dtype = "float16" if kind == "f16" else "bfloat16"
    checkpoint = make_checkpoint(tmp_path / "checkpoint", "mixtral", dtype, num_hidden_layers=2)
    ranged = export_spans(checkpoint, tmp_path / "ranged", Recipe(form), spans_of(0, 1, 2))
    assert {found[0] for found in constants(ranged, smallest=1024)} == {kind}
    expected = torch_logits(checkpoint)
    assert np.abs(logits(ranged) - expected).max() < 2e-5 * np.abs(expected).max()
