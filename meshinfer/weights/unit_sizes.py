"""Pieces of a model become units: their kinds, layers and sizes, and what they have in common.

Called by the cut search.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from meshinfer.core.model import SharedBytes, Unit, UnitKind
from meshinfer.weights.crossing import Crossing
from meshinfer.weights.graph import READ_VALUE, Graph
from meshinfer.weights.key_values import ATTENTION, Caches, bytes_per_token

_F32_BYTES = 4

_WORTH_SHARING = 4096
"""Smaller constants (shapes, scales, rotary frequencies) may count twice."""

_POINTWISE = frozenset({"Add", "Clamp", "Convert", "Divide", "Multiply", "Subtract"})


@dataclass(frozen=True, slots=True)
class CutUnit:
    """A unit as the planner sees it, and where it ends in the graph."""

    unit: Unit
    crossing: str | None  # friendly name of the operation whose output leaves; None for the head
    variables: tuple[str, ...]  # states that this unit reads, in the order of the graph


@dataclass(frozen=True, slots=True)
class Piece:
    """What lies between two cuts; `entry` is None for the first, `end` for the last."""

    entry: Crossing | None
    end: Crossing | None
    places: frozenset[int]
    kinds: Counter[str]  # of the operations that token ids lead to

    @property
    def attentions(self) -> int:
        return self.kinds[ATTENTION]

    @property
    def products(self) -> int:
        """Matrix products."""
        return self.kinds["MatMul"]

    @property
    def is_trivial(self) -> bool:
        """Norms, scales, conversions: not worth a unit."""
        return not self.attentions and not self.products

    @property
    def is_pointwise(self) -> bool:
        """Sums and scales. The CPU plugin computes them together with the operation before and
        rounds once at bf16: the cut must lie behind them."""
        return self.kinds.keys() <= _POINTWISE


def describe(
    graph: Graph, caches: Caches, pieces: Sequence[Piece], vocabulary_size: int
) -> list[tuple[CutUnit, tuple[int, ...]]]:
    """For each piece its unit, and the places of the ReadValues that it reads."""
    shared = _shared(graph, pieces)
    logits_bytes = vocabulary_size * _F32_BYTES
    described = []
    for number, (piece, (kind, layer)) in enumerate(zip(pieces, _kinds(pieces), strict=True)):
        constants = (graph.constant_bytes(place) for place in piece.places)
        states = _states(graph, piece)
        unit = Unit(
            kind=kind,
            layer=layer,
            weight_bytes=sum(constants),
            cache_bytes_per_token=sum(bytes_per_token(graph, place) for place in states),
            crossing_bytes_per_token=(
                logits_bytes if piece.end is None else piece.end.width * _F32_BYTES
            ),
            shared=shared[number],
        )
        names = tuple(str(graph.nodes[place].get_variable_id()) for place in states)
        name = None if piece.end is None else graph.name(piece.end.tensors[0].place)
        described.append((CutUnit(unit, name, names), states))
    return described


def _kinds(pieces: Sequence[Piece]) -> list[tuple[UnitKind, int]]:
    """Kind and layer of every unit."""
    middle = pieces[1:-1]
    alternating = any(not piece.attentions for piece in middle)
    layer = pieces[0].attentions  # of the next attention
    kinds = [(UnitKind.BLOCK if layer else UnitKind.EMBEDDING, 0)]
    for piece in middle:
        if piece.attentions == 0:
            kinds.append((UnitKind.FEED_FORWARD, max(layer - 1, 0)))
            continue
        single = piece.attentions == 1 and alternating
        kinds.append((UnitKind.ATTENTION if single else UnitKind.BLOCK, layer))
        layer += piece.attentions
    return [*kinds, (UnitKind.HEAD, layer)]


def _states(graph: Graph, piece: Piece) -> tuple[int, ...]:
    return tuple(sorted(place for place in piece.places if graph.kinds[place] == READ_VALUE))


def _shared(graph: Graph, pieces: Sequence[Piece]) -> list[tuple[SharedBytes, ...]]:
    """What each unit has in common with the nearest one before that has it too. A range of units
    then counts a thing once for each that holds it, less once for each such pair inside."""
    latest: dict[int, int] = {}  # place of a constant or state -> the last unit that has it
    shared = []
    for number, piece in enumerate(pieces):
        found: dict[int, SharedBytes] = {}
        for place in sorted(piece.places):
            size = graph.constant_bytes(place)
            cache = bytes_per_token(graph, place) if graph.kinds[place] == READ_VALUE else 0
            if size < _WORTH_SHARING and not cache:
                continue
            other = latest.get(place)
            if other is not None:
                before = found.get(other, SharedBytes(other, 0, 0))
                found[other] = replace(
                    before,
                    weight_bytes=before.weight_bytes + size,
                    cache_bytes_per_token=before.cache_bytes_per_token + cache,
                )
            latest[place] = number
        shared.append(tuple(found[other] for other in sorted(found)))
    return shared
