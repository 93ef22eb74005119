from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from meshinfer.core.model import UnitRange
from meshinfer.errors import StageFailed
from meshinfer.weights.cut import cut
from tests.weights.chain import PLAIN, Array
from tests.weights.tiny import tiny_model

pytestmark = pytest.mark.openvino


Pick = Callable[[ov.Model], Any]


def _scaled_by_extent(tmp_path: Path, pick: Pick, axis: int) -> Path:
    """A tiny model whose head's input is multiplied by one axis of the output that `pick` names."""
    model = tiny_model(layers=2)
    index, zero = ops.constant(np.int64(axis)), ops.constant(np.int64(0))
    extent = ops.convert(ops.gather(ops.shape_of(pick(model)), index, zero), "f32")
    head = model.get_results()[0].input(0).get_source_output().get_node()
    scaled = ops.multiply(head.input(0).get_source_output(), extent)
    head.input(0).replace_source_output(scaled.output(0))
    xml = tmp_path / "model.xml"
    ov.save_model(model, xml, compress_to_fp16=False)
    return xml


def _shaped(shape: str) -> Pick:
    """The first output with this shape."""
    return lambda model: next(
        node.output(0)
        for node in model.get_ordered_ops()
        if node.get_output_size() and str(node.output(0).get_partial_shape()) == shape
    )


def _flattened(model: ov.Model) -> Any:
    rows = ops.constant(np.array([-1, 64], np.int64))
    return ops.reshape(_shaped("[?,?,64]")(model), rows, False).output(0)


def _logits_of_head(xml: Path, hidden: Array) -> Any:
    request = ov.Core().compile_model(cut(xml, UnitRange(5, 6)), "CPU", PLAIN)
    return request({"inputs_embeds": hidden})[0]


@pytest.mark.parametrize(
    ("shape", "axis", "extent"),
    [
        ("[?,?,64]", 0, 2),
        ("[?,?,64]", 1, 3),
        ("[?,?,64]", 2, 64),
        ("[?,4,?,16]", 0, 2),
        ("[?,4,?,16]", 1, 4),
        ("[?,4,?,16]", 2, 3),
        ("[?,4,?,16]", 3, 16),
        ("[?,?,4,16]", 1, 3),
    ],
)
def test_batch_length_and_known_axes_come_from_the_entry(
    tmp_path: Path, shape: str, axis: int, extent: int
) -> None:
    hidden = np.random.default_rng(1).normal(size=(2, 3, 64)).astype(np.float32)
    plain = tmp_path / "plain.xml"
    ov.save_model(tiny_model(layers=2), plain, compress_to_fp16=False)
    xml = _scaled_by_extent(tmp_path, _shaped(shape), axis)
    expected = _logits_of_head(plain, hidden) * extent
    np.testing.assert_allclose(_logits_of_head(xml, hidden), expected, rtol=1e-4, atol=1e-4)


def test_the_length_of_a_cache_is_refused_where_no_cache_is(tmp_path: Path) -> None:
    xml = _scaled_by_extent(tmp_path, _shaped("[?,2,?,16]"), 2)
    assert cut(xml, UnitRange(3, 6)).inputs  # has a cache of its own to look at
    with pytest.raises(StageFailed, match="the part has no cache like it"):
        cut(xml, UnitRange(5, 6))


def test_batch_and_length_in_one_axis_are_refused(tmp_path: Path) -> None:
    xml = _scaled_by_extent(tmp_path, _flattened, 0)
    with pytest.raises(StageFailed, match="its axes are not those of the part's input"):
        cut(xml, UnitRange(3, 6))
