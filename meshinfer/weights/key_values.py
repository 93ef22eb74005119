"""Which operations belong to the key-value caches of a model, and who reads each cache.

A graph enters; its growing states leave, and every tensor that is as long as a cache. Such tensors
never cross a cut: a stage that reads a cache keeps its own, made from the new keys and values.
Called by the cut search and by the cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from meshinfer.weights.graph import READ_VALUE, SHAPE_OF, Graph, dimensions

ATTENTION = "ScaledDotProductAttention"
ASSIGN = "Assign"

_F32_BYTES = 4
_ENDS_LENGTH = frozenset({"MatMul", ATTENTION, SHAPE_OF, "Parameter", "Constant", "Result"})
"""What these give is not as long as the cache that they read."""


@dataclass(frozen=True, slots=True)
class Caches:
    """`readers` holds, for the ReadValue of each growing state, the operations that use it, first
    one first; `behind` the states that each tensor as long as a cache is made from."""

    readers: dict[int, tuple[int, ...]]
    behind: dict[int, frozenset[int]]
    assigns: dict[int, int]  # place of a state's ReadValue -> of its Assign

    @classmethod
    def of(cls, graph: Graph) -> Caches:
        behind = _lengths(graph)
        return cls(_readers(graph, behind), behind, _assigns(graph))

    @property
    def is_shared(self) -> bool:
        """Whether two operations read one cache, as where layers share keys and values."""
        return any(len(places) > 1 for places in self.readers.values())

    def is_long(self, place: int) -> bool:
        """Whether a tensor is as long as a cache."""
        return place in self.behind


def bytes_per_token(graph: Graph, state: int) -> int:
    """f32 bytes that one more token adds to a state (the place of its ReadValue); 0 for one that
    does not grow."""
    axes = dimensions(graph.nodes[state].output(0)) or ()
    if len(axes) < 3 or None not in axes[1:]:
        return 0
    return prod(axis for axis in axes if axis is not None) * _F32_BYTES


def stream_graph(graph: Graph, caches: Caches) -> Graph:
    """The graph as one step's values flow through it: caches are taken out, and new keys and values
    go straight to the first operation that reads them. Where later layers read the same cache,
    nothing but the hidden state leads to them.

    Nodes and places are those of `graph`; only `sources` differ.
    """
    fresh: dict[int, tuple[int, ...]] = {}
    sources: list[tuple[int, ...]] = []
    for place in range(len(graph.nodes)):
        own = [source for source in graph.sources[place] if not caches.is_long(source)]
        long = [source for source in graph.sources[place] if caches.is_long(source)]
        if caches.is_long(place):
            fresh[place] = (*own, *(new for source in long for new in fresh[source]))
            sources.append(())
            continue
        for source in long:
            first = {caches.readers[state][:1] for state in caches.behind[source]}
            if graph.kinds[place] != SHAPE_OF and (place,) in first:
                own.extend(fresh[source])
        sources.append(tuple(own))
    return Graph(graph.nodes, graph.kinds, tuple(sources))


def _lengths(graph: Graph) -> dict[int, frozenset[int]]:
    behind: dict[int, frozenset[int]] = {}
    for place, kind in enumerate(graph.kinds):
        if kind == READ_VALUE:
            if bytes_per_token(graph, place):
                behind[place] = frozenset((place,))
        elif kind not in _ENDS_LENGTH:
            made_from = [behind[source] for source in graph.sources[place] if source in behind]
            if made_from:
                behind[place] = frozenset().union(*made_from)
    return behind


def _readers(graph: Graph, behind: dict[int, frozenset[int]]) -> dict[int, tuple[int, ...]]:
    readers: dict[int, list[int]] = {
        place: [] for place in behind if graph.kinds[place] == READ_VALUE
    }
    for place, kind in enumerate(graph.kinds):
        if place in behind or kind == SHAPE_OF:
            continue
        read = {state for source in graph.sources[place] for state in behind.get(source, ())}
        for state in read:
            readers[state].append(place)
    return {state: tuple(places) for state, places in readers.items()}


def _assigns(graph: Graph) -> dict[int, int]:
    names = {
        str(graph.nodes[place].get_variable_id()): place
        for place, kind in enumerate(graph.kinds)
        if kind == ASSIGN
    }
    found = {}
    for place, kind in enumerate(graph.kinds):
        if kind == READ_VALUE:
            assign = names.get(str(graph.nodes[place].get_variable_id()))
            if assign is not None:
                found[place] = assign
    return found
