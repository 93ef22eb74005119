"""What crosses a cut beside the hidden state, and what may not."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from meshinfer.core.model import UnitKind
from meshinfer.errors import StageFailed
from meshinfer.weights.crossing import Tensor, token_tensor
from meshinfer.weights.cut_points import Anatomy, anatomy
from meshinfer.weights.graph import Graph
from tests.weights.tiny import constant, tiny_model
from tests.weights.tiny_shared import tiny_shared

HIDDEN, FRONT, KEY_OR_VALUE = 64, 8, 32


def widths(whole: Anatomy) -> list[list[int]]:
    return [[tensor.width for tensor in end.tensors] for end in whole.ends]


@pytest.mark.parametrize("style", ["genai", "optimum"])
def test_only_the_hidden_state_crosses_in_most_decoders(style: Any) -> None:
    assert widths(anatomy(tiny_model(layers=3, style=style))) == [[HIDDEN]] * 7


def test_the_front_crosses_whole_then_in_slices_that_are_still_to_be_read() -> None:
    whole = anatomy(tiny_shared(layers=3, shared=0))
    assert [unit.unit.kind for unit in whole.units] == [
        UnitKind.EMBEDDING,
        *[UnitKind.ATTENTION, UnitKind.FEED_FORWARD, UnitKind.FEED_FORWARD] * 3,
        UnitKind.HEAD,
    ]
    slices = [[HIDDEN, *[FRONT] * left] for left in (3, 3, 2, 2, 2, 1, 1, 1, 0)]
    # Behind the embedding only what was looked up: its projection follows with the first layer.
    assert widths(whole) == [[HIDDEN, 3 * FRONT], *slices]


def test_a_single_layer_is_taken_apart_as_well() -> None:
    whole = anatomy(tiny_shared(layers=1, shared=0))
    assert widths(whole) == [[HIDDEN, FRONT], [HIDDEN, FRONT], [HIDDEN, FRONT], [HIDDEN]]


def test_new_keys_and_values_cross_from_their_layer_to_the_last_that_reads_them() -> None:
    """Of four layers, the third reads the cache of the first and the fourth that of the second."""
    whole = anatomy(tiny_shared(layers=4, shared=2, front=0))
    pairs = [0, 1, 1, 2, 2, 1, 1, 0, 0]
    assert widths(whole) == [[HIDDEN, *[KEY_OR_VALUE] * (2 * pair)] for pair in pairs]
    for end in whole.ends[3:5]:
        assert {tensor.axes for tensor in end.tensors[1:]} == {(None, 2, None, 16)}


def test_what_crosses_is_what_the_unit_says() -> None:
    whole = anatomy(tiny_shared())
    for found, end in zip(whole.units, whole.ends, strict=False):
        assert found.unit.crossing_width == end.width
        assert found.unit.crossing_bytes_per_token == 4 * end.width


def test_an_embedding_that_the_end_reads_again_crosses() -> None:
    plain = widths(anatomy(tiny_shared(front=0, shared=0, layers=2)))
    again = widths(anatomy(tiny_shared(front=0, shared=0, layers=2, again=True)))
    assert again == [plain[0], *([*one, HIDDEN] for one in plain[1:-1]), plain[-1]]


def test_a_crossing_that_is_too_wide_is_refused_and_the_others_stay() -> None:
    """Three slices of 150 numbers and 64 of the hidden state are more than 8 x 64."""
    whole = anatomy(tiny_shared(layers=4, shared=0, front=150))
    left = [[HIDDEN, *[150] * slices] for slices in (2, 2, 2, 1, 1, 1, 0)]
    assert widths(whole) == left
    assert [unit.unit.kind for unit in whole.units[:2]] == [UnitKind.BLOCK, UnitKind.ATTENTION]
    assert [unit.unit.layer for unit in whole.units] == [0, 2, 2, 2, 3, 3, 3, 4]
    assert "514 numbers a token would cross" in whole.refused[-1]


def test_a_value_that_is_not_one_for_every_token_is_refused_by_name() -> None:
    whole = anatomy(with_sequence_value(tiny_model(layers=4), attention=2))
    assert "scaled_by_sequence" in whole.refused[0]
    assert "no f32 value for every token" in whole.refused[0]
    assert widths(whole) == [[HIDDEN]] * len(whole.ends)
    assert [unit.unit.kind for unit in whole.units] == [
        UnitKind.BLOCK,  # up to the third attention, with the embedding
        UnitKind.FEED_FORWARD,
        UnitKind.ATTENTION,
        UnitKind.FEED_FORWARD,
        UnitKind.HEAD,
    ]


def with_sequence_value(model: ov.Model, attention: int) -> ov.Model:
    """The mask of one attention depends on whether any token of the sequence is not 0."""
    ids = model.input("input_ids").get_node()
    attentions = [
        node
        for node in model.get_ordered_ops()
        if node.get_type_name() == "ScaledDotProductAttention"
    ]
    real = ops.not_equal(ids.output(0), constant(0, np.int64))
    any_real = ops.convert(ops.reduce_logical_or(real, constant([1], np.int64), True), "f32")
    wide = ops.unsqueeze(any_real, constant([1, 2], np.int64))
    port = attentions[attention].input(3)
    joined = ops.multiply(port.get_source_output(), wide)
    joined.set_friendly_name("scaled_by_sequence")
    port.replace_source_output(joined.output(0))
    model.validate_nodes_and_infer_types()
    return model


def test_a_model_that_cannot_be_cut_at_all_says_which_tensor_is_in_the_way() -> None:
    with pytest.raises(StageFailed, match="scaled_by_sequence"):
        anatomy(with_sequence_value(tiny_model(layers=2), attention=1))


@pytest.mark.parametrize(
    ("shape", "kind", "axes"),
    [
        ([-1, -1, 64], "f32", (None, None, 64)),
        ([-1, 2, -1, 16], "f32", (None, 2, None, 16)),
        ([4, -1, -1, 64], "f32", (4, None, None, 64)),
        ([-1, -1, 64], "i64", None),
        ([-1, 64], "f32", None),
        ([-1, -1, -1, 16], "f32", None),
    ],
)
def test_a_token_tensor_has_batch_and_length_unknown(
    shape: list[int], kind: str, axes: tuple[int | None, ...] | None
) -> None:
    node = ops.parameter(shape, {"f32": np.float32, "i64": np.int64}[kind])
    found = token_tensor(Graph((node,), ("Parameter",), ((),)), (0, 0))
    assert found == (None if axes is None else Tensor(0, 0, axes))
