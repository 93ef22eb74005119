"""Ports are read from the graph, and a graph that cannot be paged is refused with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from meshinfer.core.model import UnitRange
from meshinfer.engine.ports import Ports, read_ports
from meshinfer.engine.transform import BIAS_INPUTS, PAGED_INPUTS, WANTED_INPUT, transform
from meshinfer.errors import StageFailed
from meshinfer.weights.cut import cut
from tests.weights.tiny import tiny_model

pytestmark = pytest.mark.openvino

UNITS = 6


def parameter(name: str, shape: list[int], kind: Any = np.float32) -> Any:
    made = ops.parameter(shape, kind, name=name)
    made.output(0).set_names({name})
    return made


def model(output: Any, inputs: list[Any], name: str) -> ov.Model:
    output.output(0).set_names({name})
    return ov.Model([ops.result(output)], inputs, "test")


def inputs_of(graph: ov.Model) -> set[str]:
    return {name for port in graph.inputs for name in port.names}


@pytest.mark.parametrize(
    ("units", "expected"),
    [
        ((0, 1), Ports(True, False, 0, 64, 256, 256, has_attention=False)),
        ((0, 3), Ports(True, False, 0, 64, 256, 256, has_attention=True)),
        ((0, 6), Ports(True, True, 0, 0, 256, 256, has_attention=True)),
        ((2, 3), Ports(False, False, 64, 64, 0, 0, has_attention=False)),
        ((2, 5), Ports(False, False, 64, 64, 0, 0, has_attention=True)),
        ((3, 6), Ports(False, True, 64, 0, 256, 0, has_attention=True)),
        ((5, 6), Ports(False, True, 64, 0, 256, 0, has_attention=False)),
    ],
)
def test_ports_of_every_kind_of_stage(
    tiny_xml: Path, units: tuple[int, int], expected: Ports
) -> None:
    assert read_ports(cut(tiny_xml, UnitRange(*units))) == expected


def test_a_paged_stage_takes_blocks_and_gives_wanted_rows(tiny_xml: Path) -> None:
    graph = cut(tiny_xml, UnitRange(3, 6))
    transform(graph, read_ports(graph), "f32")
    caches = {"key_cache.0", "value_cache.0"}
    positions = {"position_ids"}
    assert inputs_of(graph) == {"inputs_embeds", WANTED_INPUT, *PAGED_INPUTS, *caches, *positions}
    assert list(graph.input("inputs_embeds").get_partial_shape())[1].get_length() == 64
    assert not graph.get_sinks()


@pytest.mark.parametrize(
    ("trees", "units", "there"),
    [
        (True, (3, 6), True),
        (True, (0, 3), True),
        (True, (5, 6), False),
        (False, (3, 6), False),
    ],
)
def test_a_stage_with_attention_takes_trees_where_they_are_wanted(
    tiny_xml: Path, trees: bool, units: tuple[int, int], there: bool
) -> None:
    graph = cut(tiny_xml, UnitRange(*units))
    transform(graph, read_ports(graph), "f32", trees)
    assert inputs_of(graph) & set(BIAS_INPUTS) == (set(BIAS_INPUTS) if there else set())


@pytest.mark.parametrize("units", [(2, 3), (1, 4)])
def test_bf16_ports_lie_on_both_sides_of_an_inner_stage(
    tiny_xml: Path, units: tuple[int, int]
) -> None:
    graph = cut(tiny_xml, UnitRange(*units))
    transform(graph, read_ports(graph), "bf16")
    assert graph.input("inputs_embeds").get_element_type() == ov.Type.bf16
    assert graph.outputs[0].get_element_type() == ov.Type.bf16


def test_ids_and_logits_keep_their_types_at_bf16(tiny_xml: Path) -> None:
    graph = cut(tiny_xml, UnitRange(0, 6))
    transform(graph, read_ports(graph), "bf16")
    assert graph.input("input_ids").get_element_type() == ov.Type.i64
    assert graph.outputs[0].get_element_type() == ov.Type.f32


@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_looked_up_rows_are_rounded_before_they_are_scaled_at_bf16(
    precision: str, tmp_path: Path
) -> None:
    """A stage would have its table scaled, the whole model (whose head shares the table) not."""
    xml = tmp_path / "scaled.xml"
    ov.save_model(tiny_model(layers=1, scale=9.797959), xml, compress_to_fp16=False)
    graph = cut(xml, UnitRange(0, 1))
    transform(graph, read_ports(graph), precision)
    (scale,) = [node for node in graph.get_ops() if node.get_type_name() == "Multiply"]
    behind = scale.input(0).get_source_output().get_node()
    assert behind.get_type_name() == ("Convert" if precision == "bf16" else "Gather")
    if precision == "bf16":
        rounded = behind.input(0).get_source_output()
        assert rounded.get_element_type() == ov.Type.bf16
        lookup = rounded.get_node().input(0).get_source_output().get_node()
        assert lookup.get_type_name() == "Gather"


def test_the_shortest_table_limits_the_token_ids() -> None:
    ids = parameter("input_ids", [-1, -1], np.int64)
    tables = [ops.constant(np.ones((rows, 4), np.float32)) for rows in (9, 7, 8)]
    found = [ops.gather(table, ids, ops.constant(np.int64(0))) for table in tables]
    graph = model(ops.add(ops.add(found[0], found[1]), found[2]), [ids], "hidden_states")
    assert read_ports(graph) == Ports(True, False, 0, 4, 7, 7, has_attention=False)


def test_a_soft_capped_head_is_found() -> None:
    hidden = parameter("inputs_embeds", [-1, -1, 4])
    head = ops.matmul(hidden, ops.constant(np.ones((9, 4), np.float32)), False, True)
    capped = ops.multiply(
        ops.tanh(ops.divide(head, ops.constant(np.float32(30)))), ops.constant(np.float32(30))
    )
    graph = model(capped, [hidden], "logits")
    transform(graph, read_ports(graph), "f32")
    assert WANTED_INPUT in inputs_of(graph)


def test_a_model_with_neither_ids_nor_activations_is_refused() -> None:
    pixels = parameter("pixels", [-1, 3])
    with pytest.raises(StageFailed, match="neither input_ids nor inputs_embeds"):
        read_ports(model(ops.relu(pixels), [pixels], "logits"))


def test_a_model_with_two_outputs_is_refused() -> None:
    hidden = parameter("inputs_embeds", [-1, -1, 4])
    results = [ops.result(ops.relu(hidden)), ops.result(ops.sigmoid(hidden))]
    with pytest.raises(StageFailed, match="2 outputs"):
        read_ports(ov.Model(results, [hidden], "test"))


def test_attention_without_a_state_is_refused() -> None:
    hidden = parameter("inputs_embeds", [1, 1, -1, 4])
    attention = ops.scaled_dot_product_attention(hidden, hidden, hidden)
    with pytest.raises(StageFailed, match="without a state"):
        read_ports(model(attention, [hidden], "hidden_states"))


def test_a_state_without_an_attention_operation_is_refused() -> None:
    """model_server issue 4178: an export that spells attention out cannot be paged."""
    hidden = parameter("inputs_embeds", [1, 1, 4])
    past = ops.read_value(
        ops.constant(np.zeros((1, 1, 4), np.float32)),
        "past",
        np.float32,
        ov.PartialShape([1, 1, 4]),
    )
    added = ops.add(past, hidden)
    added.output(0).set_names({"hidden_states"})
    graph = ov.Model([ops.result(added)], [ops.assign(added, "past")], [hidden], "test")
    with pytest.raises(StageFailed, match="no ScaledDotProductAttention"):
        read_ports(graph)


def test_an_input_that_we_do_not_know_is_named() -> None:
    hidden, kinds = (
        parameter("inputs_embeds", [-1, -1, 4]),
        parameter("token_type_ids", [-1, -1, 4]),
    )
    graph = model(ops.add(hidden, kinds), [hidden, kinds], "hidden_states")
    with pytest.raises(StageFailed, match="'token_type_ids'"):
        transform(graph, read_ports(graph), "f32")


def test_logits_without_a_matrix_product_are_refused() -> None:
    hidden = parameter("inputs_embeds", [-1, -1, 4])
    graph = model(ops.relu(hidden), [hidden], "logits")
    with pytest.raises(StageFailed, match="come from a Relu"):
        transform(graph, read_ports(graph), "f32")
