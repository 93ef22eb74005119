"""Shapes that a stage can no longer see, taken from what it has.

Masks and rotary parts ask tensors of the first layer how long the batch is and how much is cached.
A later stage does not have that layer, but its own input has the same batch and length, and its own
cache has the same past. Called by the cut, before the graph is changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from meshinfer.errors import StageFailed
from meshinfer.weights.graph import READ_VALUE, SHAPE_OF, Graph, dimensions

_STOPS = frozenset({"MatMul", "ScaledDotProductAttention", SHAPE_OF, "Parameter", "Constant"})
"""Behind these a tensor is no longer as long as the cache."""

_Step = tuple[str, int]  # kind of an operation, number of the input that the path comes through


class ShapeRoots:
    """Finds, for a ShapeOf of something cut off, an output with the same values.

    `states` are the places of the stage's own ReadValues; `absent` holds what the stage cannot
    compute; `entry` is the stage's own Parameter [batch, length, hidden].
    """

    def __init__(
        self, graph: Graph, states: tuple[int, ...], absent: frozenset[int], entry: Any
    ) -> None:
        self._graph = graph
        self._states = states
        self._absent = absent
        self._entry = entry
        self._consumers: dict[int, list[int]] = {}
        for place, sources in enumerate(graph.sources):
            for source in sources:
                self._consumers.setdefault(source, []).append(place)

    def root(self, shape_of: int) -> Any:
        """An output with the values of this ShapeOf. Raises StageFailed naming the tensor."""
        from openvino import opset13 as ops

        (source,) = self._graph.sources[shape_of]
        kind = self._graph.nodes[shape_of].get_output_element_type(0).get_type_name()
        path = self._path_to_state(source)
        if path is None:
            return self._from_entry(source, kind)
        wanted = dimensions(self._graph.nodes[source].output(0))
        for state in self._states:
            for twin in self._followed(state, path):
                output = self._graph.nodes[twin].output(0)
                if dimensions(output) == wanted:
                    return ops.shape_of(output, kind).output(0)
        raise self._lost(source, "the part has no cache like it")

    def _path_to_state(self, place: int) -> list[_Step] | None:
        """How `place` is made from a cache, last step first; None when it is not as long as one."""
        if self._graph.kinds[place] == READ_VALUE:
            return []
        if self._graph.kinds[place] in _STOPS:
            return None
        for number, source in enumerate(self._graph.sources[place]):
            rest = self._path_to_state(source)
            if rest is not None:
                return [(self._graph.kinds[place], number), *rest]
        return None

    def _followed(self, state: int, path: list[_Step]) -> Iterator[int]:
        """Present places that are made from `state` in the same steps."""
        reached = [state]
        for kind, number in reversed(path):
            reached = [
                place
                for source in reached
                for place in self._consumers.get(source, ())
                if self._graph.kinds[place] == kind
                and len(self._graph.sources[place]) > number
                and self._graph.sources[place][number] == source
                and place not in self._absent
            ]
        yield from reached

    def _from_entry(self, place: int, kind: str) -> Any:
        """Batch and length from the stage's input, the other axes as they are known."""
        import numpy as np
        from openvino import opset13 as ops

        axes = dimensions(self._graph.nodes[place].output(0))
        if axes is None or sum(axis is None for axis in axes) > 2 or axes[0] is not None:
            raise self._lost(place, "its axes are not those of the part's input")
        if len(axes) == 2 and axes[1] is not None:
            raise self._lost(place, "batch and length are one axis there")
        shape = ops.shape_of(self._entry, kind)
        parts, own_axis = [], 0
        for axis in axes:
            if axis is None:
                index = ops.constant(np.array([own_axis], np.int64))
                parts.append(ops.gather(shape, index, ops.constant(np.int64(0))))
                own_axis += 1
            else:
                parts.append(
                    ops.constant(np.array([axis], np.int64 if kind == "i64" else np.int32))
                )
        return ops.concat(parts, 0).output(0)

    def _lost(self, place: int, why: str) -> StageFailed:
        return StageFailed(
            f"The model cannot be cut there: the shape of '{self._graph.name(place)}' is needed "
            f"behind the cut, and {why}.",
            "Choose another cut, or another model.",
        )
