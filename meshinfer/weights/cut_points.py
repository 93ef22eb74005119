"""Where a decoder can be cut: a search by structure that needs no names.

A cut point is a tensor that every path of values from token ids to logits crosses. An ov.Model
enters (from openvino_genai's GGUF reader, optimum-intel or the Hub), a row of units leaves. Called
when a model is described and when it is cut.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import Any

from meshinfer.core.model import Unit, UnitKind
from meshinfer.errors import StageFailed
from meshinfer.weights.graph import READ_VALUE, SHAPE_OF, Graph, dimensions

_F32_BYTES = 4
_ANOTHER_MODEL = "Choose another text-only decoder model, or export it again."
_ATTENTION = "ScaledDotProductAttention"


@dataclass(frozen=True, slots=True)
class CutUnit:
    """A unit as the planner sees it, and where it ends in the graph."""

    unit: Unit
    crossing: str | None  # friendly name of the operation whose output leaves; None for the head
    variables: tuple[str, ...]  # states that only this unit reads, in the order of the graph


@dataclass(frozen=True, slots=True)
class Anatomy:
    """A model taken apart. `ends[i]` is the place of unit i's last operation (for the head: of the
    Result), `variables[i]` the places of the ReadValues that unit i reads."""

    graph: Graph
    tokens: int  # place of input_ids
    flow: tuple[int, ...]
    units: tuple[CutUnit, ...]
    ends: tuple[int, ...]
    variables: tuple[tuple[int, ...], ...]
    hidden_size: int
    vocabulary_size: int


@dataclass(frozen=True, slots=True)
class _Part:
    """Flow between two neighbouring candidates."""

    places: tuple[int, ...]
    attentions: int
    products: int  # matrix products

    @property
    def trivial(self) -> bool:
        """Norms, scales, conversions: not worth a unit."""
        return not self.attentions and not self.products

    def joined(self, other: _Part) -> _Part:
        return _Part(
            self.places + other.places,
            self.attentions + other.attentions,
            self.products + other.products,
        )


def find_units(model: Any) -> tuple[CutUnit, ...]:
    """The units of an ov.Model, in order: the embedding, two for every layer, the head.

    Sizes in bytes. A constant that several units read (a tied embedding) is counted in each.
    Raises StageFailed naming the tensor that stands in the way of a cut.
    """
    return anatomy(model).units


def anatomy(model: Any) -> Anatomy:
    """`find_units` with the places in the graph. Raises StageFailed."""
    graph = Graph.of(model)
    tokens = _token_input(graph)
    flow = graph.flow(tokens, _logits(graph))
    if tokens not in flow:
        raise StageFailed("The model's logits do not depend on its input_ids.", _ANOTHER_MODEL)
    parts, hidden_size = _parts(graph, flow)
    logits = dimensions(graph.nodes[flow[-1]].output(0))
    vocabulary_size = (logits[-1] if logits else None) or 0
    describer = _Describer(graph, frozenset(flow), hidden_size, vocabulary_size)
    described = describer.describe(parts)
    return Anatomy(
        graph=graph,
        tokens=tokens,
        flow=flow,
        units=tuple(unit for unit, _ in described),
        ends=tuple(part.places[-1] for part in parts),
        variables=tuple(places for _, places in described),
        hidden_size=hidden_size,
        vocabulary_size=vocabulary_size,
    )


def _token_input(graph: Graph) -> int:
    for place, kind in enumerate(graph.kinds):
        if kind == "Parameter" and "input_ids" in graph.nodes[place].output(0).names:
            return place
    raise StageFailed("The model has no input named input_ids.", _ANOTHER_MODEL)


def _logits(graph: Graph) -> int:
    results = [place for place, kind in enumerate(graph.kinds) if kind == "Result"]
    named = [place for place in results if "logits" in graph.nodes[place].output(0).names]
    chosen = named or results
    if len(chosen) != 1:
        raise StageFailed(
            f"The model has {len(results)} outputs and none is named logits.", _ANOTHER_MODEL
        )
    return chosen[0]


def _parts(graph: Graph, flow: tuple[int, ...]) -> tuple[list[_Part], int]:
    """The flow from end to end in parts, one a unit, and the hidden size."""
    candidates, hidden_size = _candidates(graph, flow)
    bounds = [-1, *(flow.index(place) for place in candidates), len(flow) - 1]
    pieces = [
        _part(graph, flow[first + 1 : end + 1]) for first, end in pairwise(bounds) if end > first
    ]
    parts = [pieces.pop(0)]
    while pieces and pieces[0].trivial:  # a scale or norm right behind the lookup
        parts[0] = parts[0].joined(pieces.pop(0))
    # Where the vocabulary is as wide as the hidden size, the logits look like a cut point too.
    while len(pieces) > 1 and pieces[-1].trivial:
        last = pieces.pop()
        pieces[-1] = pieces[-1].joined(last)
    waiting: _Part | None = None
    for piece in pieces:
        whole = piece if waiting is None else waiting.joined(piece)
        waiting = whole if whole.trivial else None
        if waiting is None:
            parts.append(whole)
    _check(graph, flow, parts)
    return parts, hidden_size


def _candidates(graph: Graph, flow: tuple[int, ...]) -> tuple[list[int], int]:
    """Separators that carry an f32 activation [batch, length, hidden], and the hidden size."""
    widths: dict[int, int] = {}
    for place in graph.separators(flow)[:-1]:
        node = graph.nodes[place]
        if node.get_output_size() != 1 or graph.kinds[place] == "Parameter":
            continue
        axes = dimensions(node.output(0))
        width = axes[-1] if axes is not None and len(axes) == 3 else None
        if width is not None and node.get_output_element_type(0).get_type_name() == "f32":
            widths[place] = width
    if not widths:
        raise _uncuttable(graph, flow)
    (hidden_size, _), *_ = Counter(widths.values()).most_common(1)
    return [place for place, width in widths.items() if width == hidden_size], hidden_size


def _part(graph: Graph, places: tuple[int, ...]) -> _Part:
    kinds = Counter(graph.kinds[place] for place in places)
    return _Part(places, kinds[_ATTENTION], kinds["MatMul"])


def _check(graph: Graph, flow: tuple[int, ...], parts: list[_Part]) -> None:
    attentions = sum(part.attentions for part in parts)
    if attentions == 0:
        raise StageFailed(
            "The model has no ScaledDotProductAttention operation.",
            "Export it again with a current optimum-intel.",
        )
    if attentions > 1 and max(part.attentions for part in parts) == attentions:
        raise _uncuttable(graph, flow)
    if len(parts) < 3 or parts[-1].attentions or not parts[-1].products or parts[0].attentions:
        raise _uncuttable(graph, flow)


def _uncuttable(graph: Graph, flow: tuple[int, ...]) -> StageFailed:
    """Names the tensor that is still needed after most of the model: it jumps over all cuts."""
    last_use = graph.last_uses(flow)
    longest = max(flow, key=lambda place: last_use.get(place, place) - place)
    return StageFailed(
        f"The model cannot be cut: '{graph.name(longest)}' is read again in "
        f"'{graph.name(last_use.get(longest, longest))}', beyond every other tensor.",
        _ANOTHER_MODEL,
    )


class _Describer:
    """Measures parts and gives them their kinds and layers."""

    def __init__(
        self, graph: Graph, flow: frozenset[int], hidden_size: int, vocabulary_size: int
    ) -> None:
        self._graph = graph
        self._flow = flow
        self._hidden_bytes = hidden_size * _F32_BYTES
        self._logits_bytes = vocabulary_size * _F32_BYTES

    def describe(self, parts: list[_Part]) -> list[tuple[CutUnit, tuple[int, ...]]]:
        middle = parts[1:-1]
        alternating = any(not part.attentions for part in middle)
        layer = 0  # of the next attention
        described = [self._unit(parts[0], UnitKind.EMBEDDING, 0)]
        for part in middle:
            if part.attentions == 0:
                described.append(self._unit(part, UnitKind.FEED_FORWARD, max(layer - 1, 0)))
                continue
            single = part.attentions == 1 and alternating
            kind = UnitKind.ATTENTION if single else UnitKind.BLOCK
            described.append(self._unit(part, kind, layer))
            layer += part.attentions
        head, variables = self._unit(parts[-1], UnitKind.HEAD, layer)
        unit = replace(head.unit, crossing_bytes_per_token=self._logits_bytes)
        described.append((replace(head, unit=unit, crossing=None), variables))
        return described

    def _unit(self, part: _Part, kind: UnitKind, layer: int) -> tuple[CutUnit, tuple[int, ...]]:
        graph = self._graph
        members = set(part.places)
        needed = graph.behind(
            part.places,
            lambda place: (
                (place in self._flow and place not in members) or graph.kinds[place] == SHAPE_OF
            ),
        )
        states = tuple(sorted(place for place in needed if graph.kinds[place] == READ_VALUE))
        unit = Unit(
            kind=kind,
            layer=layer,
            weight_bytes=sum(graph.constant_bytes(place) for place in needed),
            cache_bytes_per_token=sum(self._cache_bytes(place) for place in states),
            crossing_bytes_per_token=self._hidden_bytes,
        )
        names = tuple(str(graph.nodes[place].get_variable_id()) for place in states)
        return CutUnit(unit, graph.name(part.places[-1]), names), states

    def _cache_bytes(self, place: int) -> int:
        """f32 bytes that one more token adds to a state; 0 for one that does not grow."""
        axes = dimensions(self._graph.nodes[place].output(0)) or ()
        if len(axes) < 3 or axes[2] is not None:
            return 0
        return prod(axis for axis in axes if axis is not None) * _F32_BYTES
