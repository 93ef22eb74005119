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
from meshinfer.weights.graph import Graph
from meshinfer.weights.rerooting import ShapeRoots
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


def _groups(model: ov.Model) -> Any:
    """Heads in groups, as falcon's fused projection has them."""
    shape = ops.constant(np.array([0, 0, 2, 2, 16], np.int64))
    return ops.reshape(_shaped("[?,?,64]")(model), shape, True).output(0)


def _streams(model: ov.Model) -> Any:
    """Several hidden states in front of the batch, as Gemma 3n has them."""
    one = ops.unsqueeze(_shaped("[?,?,64]")(model), ops.constant(np.int64(0)))
    return ops.concat([one, one, one, one], 0).output(0)


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


@pytest.mark.parametrize(
    ("pick", "axis", "extent"),
    [(_groups, 0, 2), (_groups, 1, 3), (_groups, 3, 2), (_streams, 0, 4), (_streams, 2, 3)],
)
def test_other_orders_of_axes_are_understood(
    tmp_path: Path, pick: Pick, axis: int, extent: int
) -> None:
    hidden = np.random.default_rng(1).normal(size=(2, 3, 64)).astype(np.float32)
    plain = tmp_path / "plain.xml"
    ov.save_model(tiny_model(layers=2), plain, compress_to_fp16=False)
    xml = _scaled_by_extent(tmp_path, pick, axis)
    expected = _logits_of_head(plain, hidden) * extent
    np.testing.assert_allclose(_logits_of_head(xml, hidden), expected, rtol=1e-4, atol=1e-4)


def test_a_cache_with_other_heads_has_the_same_past(tmp_path: Path) -> None:
    """The mask looks at the keys of the first layer, [?,2,?,16]; the stage has [?,2,?,32]."""
    graph = Graph.of(_two_caches())
    places = {graph.name(place): place for place in range(len(graph.nodes))}
    entry = ops.parameter([-1, -1, 64], np.float32).output(0)
    absent = frozenset({places["first"], places["first_joined"]})
    roots = ShapeRoots(graph, (places["second"],), absent, entry)
    rooted = roots.root(places["length_of_first"]).get_node()
    assert rooted.get_type_name() == "Concat"
    known = [one.get_source_output().get_node() for one in rooted.inputs()]
    assert [one.get_type_name() for one in known] == ["Gather", "Constant", "Gather", "Constant"]
    assert [int(known[place].get_data()[0]) for place in (1, 3)] == [2, 16]
    looked_at = known[2].input(0).get_source_output().get_node().input(0)
    assert looked_at.get_source_output().get_node().get_friendly_name() == "second_joined"


def _two_caches() -> ov.Model:
    results, sinks, inputs = [], [], []
    for name, size in (("first", 16), ("second", 32)):
        new = ops.parameter([-1, 2, -1, size], np.float32, name=f"new_{name}")
        start = ops.constant(np.zeros((1, 2, 0, size), np.float32))
        shape = ov.PartialShape([-1, 2, -1, size])
        state = ops.read_value(start, name, np.float32, shape)
        state.set_friendly_name(name)
        joined = ops.concat([state, new], 2)
        joined.set_friendly_name(f"{name}_joined")
        length = ops.shape_of(joined)
        length.set_friendly_name(f"length_of_{name}")
        results.append(ops.result(length))
        sinks.append(ops.assign(joined, name))
        inputs.append(new)
    return ov.Model(results, sinks, inputs, "caches")


def test_the_length_of_a_cache_is_refused_where_no_cache_is(tmp_path: Path) -> None:
    xml = _scaled_by_extent(tmp_path, _shaped("[?,2,?,16]"), 2)
    assert cut(xml, UnitRange(3, 6)).inputs  # has a cache of its own to look at
    with pytest.raises(StageFailed, match="the part has no cache like it"):
        cut(xml, UnitRange(5, 6))


def test_batch_and_length_in_one_axis_are_refused(tmp_path: Path) -> None:
    xml = _scaled_by_extent(tmp_path, _flattened, 0)
    with pytest.raises(StageFailed, match="its axes are not those of the part's input"):
        cut(xml, UnitRange(3, 6))
