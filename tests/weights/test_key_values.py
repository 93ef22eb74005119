"""Caches, who reads them, and the graph without them."""

from __future__ import annotations

import numpy as np
import openvino as ov
import pytest

from meshinfer.weights.graph import READ_VALUE, Graph
from meshinfer.weights.key_values import ATTENTION, Caches, bytes_per_token, stream_graph
from tests.weights.tiny import tiny_model
from tests.weights.tiny_shared import tiny_shared


def taken_apart(model: ov.Model) -> tuple[Graph, Caches]:
    graph = Graph.of(model)
    return graph, Caches.of(graph)


def test_each_layer_of_a_plain_decoder_reads_two_caches_of_its_own() -> None:
    graph, caches = taken_apart(tiny_model(layers=3))
    assert len(caches.readers) == 6
    assert not caches.is_shared
    readers = [places for places in caches.readers.values()]
    assert {graph.kinds[place] for places in readers for place in places} == {ATTENTION}
    assert len(set(readers)) == 3
    assert len(caches.assigns) == 6


def test_layers_that_share_are_readers_of_one_cache_in_order() -> None:
    """Layers 2 and 4 read what layer 0 keeps, 3 and 5 what layer 1 keeps."""
    graph, caches = taken_apart(tiny_shared(layers=6, shared=4))
    attentions = [place for place, kind in enumerate(graph.kinds) if kind == ATTENTION]
    assert len(attentions) == 6
    assert caches.is_shared
    assert set(caches.readers.values()) == {tuple(attentions[0::2]), tuple(attentions[1::2])}


def test_what_is_as_long_as_a_cache_ends_at_the_attention() -> None:
    graph, caches = taken_apart(tiny_model(layers=2))
    kinds = {graph.kinds[place] for place in caches.behind}
    assert {READ_VALUE, "Gather", "Concat", "Reshape", "Assign"} <= kinds
    assert not kinds & {ATTENTION, "MatMul", "ShapeOf", "Result"}
    behind = [states for place, states in caches.behind.items() if graph.kinds[place] == "Concat"]
    assert {len(states) for states in behind} == {1}


def test_the_stream_leads_new_keys_to_their_first_reader_only() -> None:
    graph, caches = taken_apart(tiny_shared(layers=4, shared=2, front=0))
    stream = stream_graph(graph, caches)
    attentions = [place for place, kind in enumerate(graph.kinds) if kind == ATTENTION]
    for number, place in enumerate(attentions):
        assert not any(caches.is_long(source) for source in stream.sources[place])
        new = [one for one in stream.sources[place] if graph.kinds[one] in ("Add", "Transpose")]
        # the query, and the new key and value where they are made
        assert len(set(new)) == (3 if number < 2 else 1)
    assert all(not stream.sources[place] for place in caches.behind)


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ([-1, 2, -1, 16], 2 * 16 * 4),
        ([-1, -1, 2, 16], 2 * 16 * 4),
        ([-1, 64, 3], 0),  # the last three inputs of a convolution
        ([-1, 64], 0),
    ],
)
def test_bytes_of_a_cached_token(shape: list[int], size: int) -> None:
    from openvino import opset13 as ops

    start = ops.parameter(shape, np.float32, name="start")
    state = ops.read_value(start, "state", np.float32, ov.PartialShape(shape))
    graph = Graph((start, state), ("Parameter", READ_VALUE), ((), (0,)))
    assert bytes_per_token(graph, 1) == size
