"""Sizes of units, and what several of them have in common."""

from __future__ import annotations

from dataclasses import replace

import openvino as ov
import pytest

from meshinfer.core.ids import Digest, ModelId
from meshinfer.core.model import ModelShape, SharedBytes, UnitKind, UnitRange
from meshinfer.weights.cut_points import anatomy
from tests.weights.tiny import tiny_model
from tests.weights.tiny_shared import tiny_shared

TABLE_BYTES = 256 * 64 * 4
CACHE_BYTES = 2 * 2 * 16 * 4  # keys and values of two heads


def shape_of(model: ov.Model) -> ModelShape:
    whole = anatomy(model)
    units = tuple(one.unit for one in whole.units)
    return ModelShape(ModelId("m"), Digest("0" * 64), units, units[-1].layer, 64, 256, 512)


def test_a_tied_matrix_counts_once_where_both_ends_are_in_one_stage() -> None:
    """C02: the head's stage carries the matrix, the whole model has it once."""
    tied, untied = shape_of(tiny_model(tied=True)), shape_of(tiny_model(tied=False))
    whole = UnitRange(0, 8)
    assert tied.units[-1].shared == (SharedBytes(0, TABLE_BYTES, 0),)
    assert untied.units[-1].shared == ()
    assert untied.weight_bytes(whole) - tied.weight_bytes(whole) == TABLE_BYTES
    for border in range(1, 8):
        halves = [UnitRange(0, border), UnitRange(border, 8)]
        assert [tied.weight_bytes(one) for one in halves] == [
            untied.weight_bytes(one) for one in halves
        ]


def test_a_stage_holds_a_shared_cache_once() -> None:
    """Of six layers the last four read the caches of the first two, each kind its own."""
    shape = shape_of(tiny_shared(layers=6, shared=4, front=0))
    attentions = [
        number for number, unit in enumerate(shape.units) if unit.kind is UnitKind.ATTENTION
    ]
    assert attentions == [1, 3, 5, 7, 9, 11]
    assert shape.cache_bytes_per_token(UnitRange(0, 14)) == 2 * CACHE_BYTES
    for first in range(6):
        for end in range(first, 6):
            kinds = {layer % 2 for layer in range(first, end + 1)}
            part = UnitRange(attentions[first], attentions[end] + 1)
            assert shape.cache_bytes_per_token(part) == len(kinds) * CACHE_BYTES


@pytest.mark.parametrize("model", [tiny_model(), tiny_shared()], ids=["plain", "shared"])
def test_a_range_holds_what_its_stage_holds(
    model: ov.Model, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The sum over units, less what they have in common, is the size of the constants that a cut
    takes along; a few scalars may count twice."""
    from meshinfer.weights.cut import cut

    xml = tmp_path_factory.mktemp("sizes") / "openvino_model.xml"
    ov.save_model(model, xml, compress_to_fp16=False)
    shape = shape_of(model)
    count = len(shape.units)
    for part in (UnitRange(0, count), UnitRange(0, count // 2), UnitRange(3, count)):
        held = sum(
            int(node.output(0).get_byte_size() if hasattr(node.output(0), "get_byte_size") else 0)
            or len(node.get_data().tobytes())
            for node in cut(xml, part).get_ordered_ops()
            if node.get_type_name() == "Constant"
        )
        assert held == pytest.approx(shape.weight_bytes(part), rel=0.01)


def test_widths_follow_the_units() -> None:
    shape = shape_of(tiny_shared(layers=3, shared=0))
    widths = [unit.crossing_width for unit in shape.units]
    assert widths[:4] == [64 + 24, 64 + 24, 64 + 24, 64 + 16]
    assert widths[-1] == 256
    assert shape.input_width(UnitRange(0, 4)) == 0
    assert shape.input_width(UnitRange(4, 6)) == 64 + 16
    assert replace(shape.units[1], crossing_bytes_per_token=8).crossing_width == 2
