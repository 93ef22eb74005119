"""A model's operations as plain lists, so that structural questions are list walks.

An ov.Model enters; who feeds whom leaves. Called by the cut search and by the cut. Nothing here
looks at names: they differ between exporters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

SHAPE_OF = "ShapeOf"
READ_VALUE = "ReadValue"


@dataclass(frozen=True, slots=True)
class Graph:
    """`nodes` in topological order; `sources[place]` holds the places of its inputs, in order, and
    `ports[place]` which output of each of them it reads."""

    nodes: tuple[Any, ...]
    kinds: tuple[str, ...]
    sources: tuple[tuple[int, ...], ...]
    ports: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def of(cls, model: Any) -> Graph:
        nodes = tuple(model.get_ordered_ops())
        # get_name() is unique in a process; friendly names need not be.
        places = {node.get_name(): place for place, node in enumerate(nodes)}
        read = [[port.get_source_output() for port in node.inputs()] for node in nodes]
        sources = tuple(
            tuple(places[output.get_node().get_name()] for output in one) for one in read
        )
        ports = tuple(tuple(output.get_index() for output in one) for one in read)
        return cls(nodes, tuple(node.get_type_name() for node in nodes), sources, ports)

    def inputs(self, place: int) -> Iterator[tuple[int, int]]:
        """(place, output) of everything that `place` reads, in order."""
        return zip(self.sources[place], self.ports[place], strict=True)

    def name(self, place: int) -> str:
        """For people."""
        return str(self.nodes[place].get_friendly_name())

    def reached_from(self, start: int) -> set[int]:
        """Places whose values depend on the value (not only the shape) of `start`, with it."""
        reached = {start}
        for place in range(start + 1, len(self.nodes)):
            if self.kinds[place] != SHAPE_OF and not reached.isdisjoint(self.sources[place]):
                reached.add(place)
        return reached

    def behind(self, starts: Iterable[int], stop: Callable[[int], bool]) -> set[int]:
        """Everything that `starts` are made from, with them. A place for which `stop` holds is
        included, what it is made from is not."""
        found: set[int] = set()
        waiting = list(starts)
        while waiting:
            place = waiting.pop()
            if place in found:
                continue
            found.add(place)
            if not stop(place):
                waiting.extend(self.sources[place])
        return found

    def flow(self, start: int, end: int) -> tuple[int, ...]:
        """Places on paths of values from `start` to `end`, in order."""
        reached = self.reached_from(start)
        needed = self.behind([end], lambda place: place not in reached)
        return tuple(sorted(reached & needed))

    def separators(self, flow: tuple[int, ...]) -> tuple[int, ...]:
        """Places of `flow` that every path from its first to its last place crosses.

        All of a separator's ancestors in `flow` come before it in any topological order and all its
        descendants after, so one pass that looks for edges jumping over a place is exact.
        """
        last_use = self.last_uses(flow)
        found = []
        farthest = -1
        for place in flow:
            if farthest <= place:
                found.append(place)
            farthest = max(farthest, last_use.get(place, place))
        return tuple(found)

    def last_uses(self, flow: tuple[int, ...]) -> dict[int, int]:
        """The last place in `flow` that reads each place of it."""
        members = set(flow)
        last: dict[int, int] = {}
        for place in flow:
            if self.kinds[place] == SHAPE_OF:
                continue
            for source in self.sources[place]:
                if source in members:
                    last[source] = place
        return last

    def constant_bytes(self, place: int) -> int:
        """Size of a Constant; 0 for anything else."""
        if self.kinds[place] != "Constant":
            return 0
        output = self.nodes[place].output(0)
        bits = prod(output.get_shape()) * int(output.get_element_type().bitwidth)
        return -(-int(bits) // 8)


def dimensions(output: Any) -> tuple[int | None, ...] | None:
    """The sizes of an output's axes, None where one is dynamic; None for a dynamic rank."""
    shape = output.get_partial_shape()
    if shape.rank.is_dynamic:
        return None
    return tuple(axis.get_length() if axis.is_static else None for axis in shape)
