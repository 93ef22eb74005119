from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshinfer.errors import NotEnoughMemory, UsageError
from meshinfer.weights.export.plan import BASE_BYTES, ExportPlan, make_plan
from meshinfer.weights.export.tensors import CheckpointTensors
from meshinfer.weights.recipe import Recipe, WeightFormat
from tests.export.checkpoint_folder import layer_names, write_checkpoint, write_file

LAYER = 160  # bytes: two tensors of [10, 4] F16


def plan_of(folder: Path, layers: int, span_bytes: int, recipe: Recipe | None = None) -> ExportPlan:
    tensors = CheckpointTensors.open(folder, layers)
    return make_plan(tensors, recipe or Recipe(), "torch 1", span_bytes)


@settings(max_examples=25, deadline=None)
@given(layers=st.integers(1, 20), share=st.integers(1, 25))
def test_spans_cover_all_layers_once_within_the_limit(
    tmp_path_factory: pytest.TempPathFactory, layers: int, share: int
) -> None:
    folder = write_checkpoint(tmp_path_factory.mktemp("checkpoint"), layers=layers)
    plan = plan_of(folder, layers, share * LAYER)
    assert plan.spans[0].first == 0
    assert plan.spans[-1].end == layers
    assert all(one.end == two.first for one, two in zip(plan.spans, plan.spans[1:], strict=False))
    assert all(1 <= span.end - span.first <= share for span in plan.spans)


def test_a_layer_larger_than_the_limit_is_a_span(tmp_path: Path) -> None:
    plan = plan_of(write_checkpoint(tmp_path, layers=3), 3, 1)
    assert [str(span) for span in plan.spans] == ["0-1", "1-2", "2-3"]


def test_the_key_names_weights_recipe_and_versions(tmp_path: Path) -> None:
    first = write_checkpoint(tmp_path / "one")
    second = write_checkpoint(tmp_path / "two")
    assert plan_of(first, 3, 999).key == plan_of(second, 3, 999).key
    changed = {name: np.full((10, 4), 7) for name in layer_names(3)}
    write_file(second / "model.safetensors", changed)
    assert plan_of(first, 3, 999).key != plan_of(second, 3, 999).key
    assert plan_of(first, 3, 999).key != plan_of(first, 3, 999, Recipe(WeightFormat.INT8)).key
    other = make_plan(CheckpointTensors.open(first, 3), Recipe(), "torch 2", 999)
    assert plan_of(first, 3, 999).key != other.key


def test_too_little_memory_is_said_before_a_child_is_started(tmp_path: Path) -> None:
    plan = plan_of(write_checkpoint(tmp_path), 3, 999)
    assert plan.memory > BASE_BYTES
    plan.require_memory(plan.memory)
    with pytest.raises(NotEnoughMemory, match="MB of memory at a time, and .* are free"):
        plan.require_memory(plan.memory - 1)


def test_chosen_layers_must_border_where_parts_do(tmp_path: Path) -> None:
    plan = plan_of(write_checkpoint(tmp_path, layers=6), 6, 2 * LAYER)
    assert [str(span) for span in plan.chosen(2, 6)] == ["2-4", "4-6"]
    for first, end in [(1, 4), (2, 5), (4, 4), (4, 2), (0, 8)]:
        with pytest.raises(UsageError, match="border at 0, 2, 4, 6"):
            plan.chosen(first, end)
