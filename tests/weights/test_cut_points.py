from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from meshinfer.core.model import Unit, UnitKind
from meshinfer.errors import StageFailed
from meshinfer.weights.cut_points import find_units
from tests.weights.tiny import Style, tiny_model

HIDDEN, VOCABULARY = 64, 256
TABLE_BYTES = VOCABULARY * HIDDEN * 4


@pytest.mark.parametrize("style", ["genai", "optimum"])
def test_a_decoder_is_an_embedding_two_units_a_layer_and_a_head(style: Style) -> None:
    units = [unit.unit for unit in find_units(tiny_model(layers=3, style=style))]
    assert [unit.kind for unit in units] == [
        UnitKind.EMBEDDING,
        *[UnitKind.ATTENTION, UnitKind.FEED_FORWARD] * 3,
        UnitKind.HEAD,
    ]
    assert [unit.layer for unit in units] == [0, 0, 0, 1, 1, 2, 2, 3]


def test_sizes_are_those_of_the_tensors() -> None:
    units = [unit.unit for unit in find_units(tiny_model())]
    assert {unit.crossing_bytes_per_token for unit in units[:-1]} == {HIDDEN * 4}
    assert units[-1].crossing_bytes_per_token == VOCABULARY * 4
    # two heads of 16 numbers for keys, and as many for values
    assert [unit.cache_bytes_per_token for unit in units] == [0, 256, 0, 256, 0, 256, 0, 0]
    # gate and up [128, 64], down [64, 128], gain [64]; a few scalars beside them
    matrices = 3 * 2 * HIDDEN * HIDDEN * 4 + HIDDEN * 4
    assert matrices <= units[2].weight_bytes <= matrices + 64


@pytest.mark.parametrize("tied", [True, False])
def test_a_head_has_its_matrix_whether_it_is_shared_or_not(tied: bool) -> None:
    units = [unit.unit for unit in find_units(tiny_model(tied=tied))]
    assert TABLE_BYTES <= units[0].weight_bytes <= TABLE_BYTES + 64
    assert TABLE_BYTES <= units[-1].weight_bytes <= TABLE_BYTES + HIDDEN * 4 + 64


def test_each_attention_names_its_own_states() -> None:
    found = find_units(tiny_model(layers=2))
    states = [set(unit.variables) for unit in found if unit.unit.kind is UnitKind.ATTENTION]
    assert [len(one) for one in states] == [2, 2]
    assert states[0].isdisjoint(states[1])
    assert all(not unit.variables for unit in found if unit.unit.kind is not UnitKind.ATTENTION)


def test_units_do_not_depend_on_names() -> None:
    model = tiny_model(style="optimum")
    before = [unit.unit for unit in find_units(model)]
    for number, node in enumerate(model.get_ops()):
        node.set_friendly_name(f"x{number}")
    assert [unit.unit for unit in find_units(model)] == before


def test_logits_as_wide_as_the_hidden_state_are_no_cut_point() -> None:
    units: list[Unit] = [unit.unit for unit in find_units(tiny_model(vocabulary=HIDDEN))]
    assert len(units) == 8
    assert units[-1].kind is UnitKind.HEAD
    assert units[-1].weight_bytes >= HIDDEN * HIDDEN * 4


def test_four_bit_weights_count_half_a_byte() -> None:
    model = _without_attention_but(ops.constant(np.zeros((8, 8), np.float32)))
    packed = ov.Tensor(ov.Type.u4, ov.Shape([8, 8]))
    constant = ops.constant(packed)
    from meshinfer.weights.graph import Graph

    graph = Graph.of(model)
    place = graph.kinds.index("Constant")
    bits = Graph((constant,), ("Constant",), ((),))
    assert bits.constant_bytes(0) == 32
    assert graph.constant_bytes(place) > 0


def _without_attention_but(table: Any) -> ov.Model:
    """A model that only looks up and multiplies."""
    ids = ops.parameter([-1, -1], np.int64, name="input_ids")
    ids.output(0).set_names({"input_ids"})
    hidden = ops.gather(table, ids, ops.constant(np.int64(0)))
    result = ops.result(ops.matmul(hidden, table, False, True))
    result.output(0).set_names({"logits"})
    return ov.Model([result], [ids], "lookup")


def test_a_model_without_attention_is_refused_with_a_remedy() -> None:
    model = _without_attention_but(ops.constant(np.zeros((8, 8), np.float32)))
    with pytest.raises(StageFailed, match=r"no ScaledDotProductAttention.*Export it again"):
        find_units(model)


def test_a_model_without_token_ids_is_refused() -> None:
    model = tiny_model()
    model.input("input_ids").get_node().output(0).set_names({"tokens"})
    with pytest.raises(StageFailed, match="no input named input_ids"):
        find_units(model)


def test_what_jumps_over_every_cut_is_named() -> None:
    """What the first attention mixed is read again by the head: it is neither a key or value nor
    computed in front, so nothing between them can be cut away from it."""
    model = tiny_model(layers=2)
    attention = next(
        node
        for node in model.get_ordered_ops()
        if node.get_type_name() == "ScaledDotProductAttention"
    )
    (transpose,) = (port.get_node() for port in attention.output(0).get_target_inputs())
    (mixed,) = (port.get_node() for port in transpose.output(0).get_target_inputs())
    mixed.set_friendly_name("what_was_mixed")
    head = model.get_results()[0].input(0).get_source_output().get_node()
    doubled = ops.add(head.input(0).get_source_output(), mixed.output(0))
    head.input(0).replace_source_output(doubled.output(0))
    with pytest.raises(StageFailed, match="'what_was_mixed' is read again"):
        find_units(model)
