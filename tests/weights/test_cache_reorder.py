"""The pattern that the GPU plugin fuses: seen where it is, added where it lacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from meshinfer.core.model import UnitRange
from meshinfer.weights.cache_reorder import add_reorder, reorder_faults
from meshinfer.weights.cut import cut
from tests.weights.chain import logits, parts, whole
from tests.weights.tiny import constant, tiny_model
from tests.weights.tiny_shared import tiny_shared


def without_reorder(model: ov.Model, drop_input: bool = True) -> ov.Model:
    """As older exports for one sequence: the past is joined as it was read."""
    for state in _of_kind(model, "ReadValue"):
        for reader in list(state.output(0).get_target_inputs()):
            gather = reader.get_node()
            if gather.get_type_name() == "Gather" and reader.get_index() == 0:
                for behind in list(gather.output(0).get_target_inputs()):
                    behind.replace_source_output(state.output(0))
    if drop_input:
        model.remove_parameter(model.input("beam_idx").get_node())
    model.validate_nodes_and_infer_types()
    return model


def _of_kind(model: ov.Model, kind: str) -> list[Any]:
    return [node for node in model.get_ordered_ops() if node.get_type_name() == kind]


def _reorders(model: ov.Model) -> list[Any]:
    return [
        node
        for node in _of_kind(model, "Gather")
        if node.input(0).get_source_output().get_node().get_type_name() == "ReadValue"
    ]


@pytest.mark.parametrize(
    "model",
    [tiny_model(), tiny_model(style="optimum"), tiny_model(kv_heads=4), tiny_shared()],
    ids=["genai", "optimum", "a key for each query", "shared"],
)
def test_what_exporters_make_is_as_it_should_be(model: ov.Model) -> None:
    assert reorder_faults(model) == ()
    assert add_reorder(model) == 0


@pytest.mark.parametrize("drop_input", [True, False])
def test_what_lacks_is_named_and_added(drop_input: bool) -> None:
    model = without_reorder(tiny_model(layers=2), drop_input)
    faults = reorder_faults(model)
    assert len(faults) == 4
    assert all("are not reordered" in fault for fault in faults)
    assert add_reorder(model) == 4
    assert reorder_faults(model) == ()
    beams = model.input("beam_idx")
    assert beams.get_element_type() == ov.Type.i32
    assert len(beams.get_target_inputs()) == 4
    assert len([port for port in model.inputs if "beam_idx" in port.names]) == 1


def test_an_f16_cache_is_reordered_behind_its_conversion() -> None:
    model = _one_cache(converted=True)
    assert add_reorder(model) == 1
    (gather,) = [
        node
        for node in _of_kind(model, "Gather")
        if node.input(1).get_source_output().get_node().get_type_name() == "Parameter"
    ]
    assert gather.input(0).get_source_output().get_node().get_type_name() == "Convert"


def _one_cache(converted: bool) -> ov.Model:
    shape = ov.PartialShape([-1, 2, -1, 16])
    new = ops.parameter([-1, 2, -1, 16], np.float32, name="new")
    kind = np.float16 if converted else np.float32
    state = ops.read_value(constant(np.zeros((1, 2, 0, 16)), kind), "kept", kind, shape)
    past = ops.convert(state, "f32") if converted else state
    joined = ops.concat([past, new], 2)
    kept = ops.convert(joined, "f16") if converted else joined
    return ov.Model([ops.result(joined)], [ops.assign(kept, "kept")], [new], "cache")


Change = Any


def _computed_index(model: ov.Model, gather: Any) -> None:
    index = gather.input(1).get_source_output()
    gather.input(1).replace_source_output(ops.add(index, constant(0, np.int32)).output(0))


def _third_axis(model: ov.Model, gather: Any) -> None:
    gather.input(2).replace_source_output(constant(2, np.int64).output(0))


def _past_behind(model: ov.Model, gather: Any) -> None:
    (concat,) = [
        reader.get_node()
        for reader in gather.output(0).get_target_inputs()
        if reader.get_node().get_type_name() == "Concat"
    ]
    new = concat.input(1).get_source_output()
    concat.input(0).replace_source_output(new)
    concat.input(1).replace_source_output(gather.output(0))


def _kept_elsewhere(model: ov.Model, gather: Any) -> None:
    for assign in model.get_sinks():
        joined = assign.input(0).get_source_output()
        if joined.get_node().input(0).get_source_output().get_node() == gather:
            assign.input(0).replace_source_output(ops.relu(joined).output(0))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_computed_index, "computed, not given"),
        (_third_axis, "another axis"),
        (_past_behind, "are not reordered"),
        (_kept_elsewhere, "not what is kept"),
    ],
)
def test_every_other_form_is_told_by_what_is_wrong(change: Change, said: str) -> None:
    model = tiny_model(layers=1)
    change(model, _reorders(model)[0])
    (fault,) = reorder_faults(model)
    assert said in fault
    assert "ScaledDotProductAttention" in fault


@pytest.mark.openvino
@pytest.mark.slow
def test_the_cut_adds_it_and_changes_no_number(tmp_path: Path) -> None:
    prompt = np.array([1, 93, 198, 178, 14, 60, 75], np.int64)
    saved = {}
    for name, model in (("with", tiny_model()), ("without", without_reorder(tiny_model()))):
        saved[name] = tmp_path / f"{name}.xml"
        ov.save_model(model, saved[name], compress_to_fp16=False)
    for units in (UnitRange(0, 4), UnitRange(3, 8)):
        assert len(_reorders(cut(saved["without"], units))) == 4
        assert reorder_faults(cut(saved["without"], units)) == ()
    expected = logits(whole(saved["with"]), prompt, 3)
    assert np.array_equal(logits(parts(saved["without"], [3]), prompt, 3), expected)
