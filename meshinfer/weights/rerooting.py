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

    `states` are the places of the stage's own ReadValues in the order of their use; `absent` holds
    what the stage cannot compute; `entry` is the stage's own Parameter [batch, length, width].
    """

    def __init__(
        self, graph: Graph, states: tuple[int, ...], absent: frozenset[int], entry: Any
    ) -> None:
        self._graph = graph
        self._states = states
        self._absent = absent
        self._entry = entry
        self._made = 0
        self._dead: set[int] = set()  # places that are not made from a cache
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
        twins = [twin for state in self._states for twin in self._followed(state, path)]
        outputs = [self._graph.nodes[twin].output(0) for twin in twins]
        # The first layer's: the keys of a later one may be made with the mask that asks here.
        for output in outputs:
            axes = dimensions(output)
            if axes == wanted:
                return self._named(ops.shape_of(output, kind)).output(0)
            # Layers may have heads of different sizes; batch and past are the same.
            if wanted is not None and axes is not None and _unknown(axes) == _unknown(wanted):
                return self._shape(output, wanted, _unknown(wanted), kind)
        raise self._lost(source, "the part has no cache like it")

    def _path_to_state(self, place: int) -> list[_Step] | None:
        """How `place` is made from a cache, last step first; None when it is not as long as one."""
        if self._graph.kinds[place] == READ_VALUE:
            return []
        if self._graph.kinds[place] in _STOPS or place in self._dead:
            return None
        for number, source in enumerate(self._graph.sources[place]):
            rest = self._path_to_state(source)
            if rest is not None:
                return [(self._graph.kinds[place], number), *rest]
        self._dead.add(place)
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
        axes = dimensions(self._graph.nodes[place].output(0))
        if axes is None or not self._is_batch_and_length(place, axes):
            raise self._lost(place, "its axes are not those of the part's input")
        return self._shape(self._entry, axes, (0, 1), kind)

    def _shape(
        self, output: Any, axes: tuple[int | None, ...], unknown: tuple[int, ...], kind: str
    ) -> Any:
        """A shape with these `axes`; those that are not known are the axes `unknown` of `output`,
        in order."""
        import numpy as np
        from openvino import opset13 as ops

        dtype = np.int64 if kind == "i64" else np.int32
        shape = self._named(ops.shape_of(output, kind))
        zero = self._named(ops.constant(np.int64(0)))
        parts, places = [], iter(unknown)
        for axis in axes:
            if axis is None:
                index = self._named(ops.constant(np.array([next(places)], np.int64)))
                parts.append(self._named(ops.gather(shape, index, zero)))
            else:
                parts.append(self._named(ops.constant(np.array([axis], dtype))))
        return self._named(ops.concat(parts, 0)).output(0)

    def _is_batch_and_length(self, place: int, axes: tuple[int | None, ...]) -> bool:
        """[batch, length, ...], [batch, heads, length, size], and [streams, batch, length, size].
        What a Reshape made of three axes may have batch and heads in one: it is not trusted."""
        if len(axes) == 3 and self._graph.kinds[place] == "Reshape":
            return False
        unknown = _unknown(axes)
        return unknown == (0, 1) or (len(axes) == 4 and unknown in ((0, 2), (1, 2)))

    def _named(self, node: Any) -> Any:
        """OpenVINO's own names count up over a process; equal cuts shall be equal files."""
        node.set_friendly_name(f"rerooted_{self._made}")
        self._made += 1
        return node

    def _lost(self, place: int, why: str) -> StageFailed:
        return StageFailed(
            f"The model cannot be cut there: the shape of '{self._graph.name(place)}' is needed "
            f"behind the cut, and {why}.",
            "Choose another cut, or another model.",
        )


def _unknown(axes: tuple[int | None, ...]) -> tuple[int, ...]:
    return tuple(place for place, axis in enumerate(axes) if axis is None)
