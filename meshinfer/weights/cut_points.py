"""Where a decoder can be cut: a search by structure that needs no names.

A cut point is a hidden state that every path of values from token ids to logits crosses, but for
what `weights.crossing` lets cross beside it. An ov.Model enters (from openvino_genai's GGUF reader,
optimum-intel or the Hub), a row of units leaves. Called when a model is described and when it is
cut.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from meshinfer.errors import StageFailed
from meshinfer.weights.crossing import Crossing, Crossings, segment, token_tensor
from meshinfer.weights.graph import READ_VALUE, Graph, dimensions
from meshinfer.weights.key_values import ATTENTION, Caches, stream_graph
from meshinfer.weights.unit_sizes import CutUnit, Piece, describe

__all__ = ["Anatomy", "CutUnit", "anatomy", "find_units"]

_ANOTHER_MODEL = "Choose another text-only decoder model, or export it again."


@dataclass(frozen=True, slots=True)
class Anatomy:
    """A model taken apart. `ends[i]` is what leaves unit i for the next; `variables[i]` holds the
    places of the ReadValues that unit i reads. `refused` says where it cannot be cut, and why."""

    graph: Graph
    caches: Caches
    tokens: int  # place of input_ids
    logits: int  # place of the Result
    units: tuple[CutUnit, ...]
    ends: tuple[Crossing, ...]  # of every unit but the last
    variables: tuple[tuple[int, ...], ...]
    refused: tuple[str, ...]
    hidden_size: int
    vocabulary_size: int


def find_units(model: Any) -> tuple[CutUnit, ...]:
    """The units of an ov.Model, in order: the embedding, two or more for every layer, the head.

    Sizes in bytes. What several units hold in common (a tied embedding, a shared cache) is counted
    in each and named in `shared`. Raises StageFailed naming the tensor that stands in the way.
    """
    return anatomy(model).units


def anatomy(model: Any) -> Anatomy:
    """`find_units` with the places in the graph. Raises StageFailed."""
    graph = Graph.of(model)
    tokens, logits = _token_input(graph), _logits(graph)
    search = _Search(graph, tokens, logits)
    pieces = search.pieces()
    sizes = dimensions(graph.nodes[logits].output(0))
    vocabulary_size = (sizes[-1] if sizes else None) or 0
    described = describe(graph, search.caches, pieces, vocabulary_size)
    return Anatomy(
        graph=graph,
        caches=search.caches,
        tokens=tokens,
        logits=logits,
        units=tuple(unit for unit, _ in described),
        ends=tuple(piece.end for piece in pieces if piece.end is not None),
        variables=tuple(states for _, states in described),
        refused=tuple(dict.fromkeys(search.refused)),
        hidden_size=search.width,
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


class _Search:
    """One search through one graph. `width` is that of the hidden state."""

    def __init__(self, graph: Graph, tokens: int, logits: int) -> None:
        self._graph = graph
        self._tokens = tokens
        self._logits = logits
        self.caches = Caches.of(graph)
        self._stream = stream_graph(graph, self.caches)
        self._flow = self._stream.flow(tokens, logits)
        if tokens not in self._flow:
            raise StageFailed("The model's logits do not depend on its input_ids.", _ANOTHER_MODEL)
        if not any(kind == ATTENTION for kind in graph.kinds):
            raise StageFailed(
                "The model has no ScaledDotProductAttention operation.",
                "Export it again with a current optimum-intel.",
            )
        self._refuse_other_states()
        self._crossings = Crossings(graph, self._stream, self.caches, tokens, logits)
        self._made = graph.reached_from(tokens)
        self.refused: list[str] = []
        self.width = 0

    def _refuse_other_states(self) -> None:
        """Recurrent and convolution layers keep one state for all tokens so far: it cannot be
        paged, and a rewind cannot undo what went into it."""
        for place, kind in enumerate(self._graph.kinds):
            if kind != READ_VALUE:
                continue
            readers = {self._graph.kinds[one] for one in self.caches.readers.get(place, ())}
            if ATTENTION not in readers:
                name = self._graph.nodes[place].get_variable_id()
                raise StageFailed(
                    f"The model keeps a state '{name}' that no attention reads, as recurrent and "
                    "convolution layers do; only key-value caches can be served.",
                    _ANOTHER_MODEL,
                )

    def pieces(self) -> list[Piece]:
        """The model from end to end, a piece for each unit. Raises StageFailed."""
        strict = self._stream.separators(self._flow)[:-1]
        pieces = self._between(self._cuts(strict, frozenset(strict)))
        if pieces[0].attentions or max(piece.attentions for piece in pieces) > 1:
            # Something jumps over the layers: look behind the first attention as well, where what
            # is computed in front does not count.
            loose = {*strict, *self._beside_the_front()}
            pieces = self._between(self._cuts(sorted(loose), frozenset(strict)))
        self._check(pieces)
        return pieces

    def _beside_the_front(self) -> Iterator[int]:
        """Separators of what the first attention leads to, and of what leads to the first of
        those that can be cut."""
        first = next(place for place in self._flow if self._graph.kinds[place] == ATTENTION)
        behind = self._stream.separators(self._stream.flow(first, self._logits))[:-1]
        yield from behind
        for cut in self._cuts(behind, frozenset()):
            front = self._stream.flow(self._tokens, cut.tensors[0].place)
            yield from self._stream.separators(front)
            break

    def _cuts(self, candidates: Iterable[int], strict: frozenset[int]) -> Iterator[Crossing]:
        """What crosses at those candidates that carry the hidden state and can be cut."""
        widths: dict[int, int] = {}
        for place in candidates:
            if self._graph.nodes[place].get_output_size() == 1:
                tensor = token_tensor(self._graph, (place, 0))
                if tensor is not None:
                    widths[place] = tensor.width
        if not widths:
            return
        ((self.width, _),) = Counter(widths.values()).most_common(1)
        for place, width in widths.items():
            if width != self.width:
                continue
            if place in strict and not self.caches.is_shared:
                tensor = token_tensor(self._graph, (place, 0))
                assert tensor is not None
                yield Crossing((tensor,))
                continue
            try:
                crossing = self._crossings.at(place)
            except StageFailed as error:
                self.refused.append(error.cause)
            else:
                if crossing is not None:
                    yield crossing

    def _between(self, cuts: Iterable[Crossing]) -> list[Piece]:
        """Pieces between cuts. What only moves and scales numbers is not worth one."""
        pieces = []
        entry: Crossing | None = None
        for end in (*cuts, None):
            pieces.append(self._piece(entry, end))
            entry = end
        kept = [pieces.pop(0)]
        while pieces and pieces[0].is_trivial:  # a scale or norm right behind the lookup
            kept[0] = self._joined(kept[0], pieces.pop(0))
        # Where the vocabulary is as wide as the hidden size, the logits look like a cut point too.
        while len(pieces) > 1 and pieces[-1].is_trivial:
            last = pieces.pop()
            pieces[-1] = self._joined(pieces[-1], last)
        waiting: Piece | None = None
        for piece in pieces:
            if waiting is None and piece.is_pointwise:
                kept[-1] = self._joined(kept[-1], piece)
                continue
            whole = piece if waiting is None else self._joined(waiting, piece)
            waiting = whole if whole.is_trivial else None
            if waiting is None:
                kept.append(whole)
        return kept

    def _joined(self, one: Piece, other: Piece) -> Piece:
        return self._piece(one.entry, other.end)

    def _piece(self, entry: Crossing | None, end: Crossing | None) -> Piece:
        ends = [self._logits] if end is None else end.places
        before = frozenset[int]() if entry is None else entry.places
        places = segment(self._graph, self.caches, before, ends)
        kinds = Counter(
            self._graph.kinds[place] for place in places - before if place in self._made
        )
        return Piece(entry, end, places, kinds)

    def _check(self, pieces: list[Piece]) -> None:
        most = max(piece.attentions for piece in pieces)
        if most > 1 and most == sum(piece.attentions for piece in pieces):
            raise self._uncuttable()
        last = pieces[-1]
        if len(pieces) < 3 or last.attentions or not last.products:
            raise self._uncuttable()

    def _uncuttable(self) -> StageFailed:
        """Names the tensor that is still needed after most of the model: it jumps over all cuts."""
        if self.refused:
            return StageFailed(self.refused[-1], _ANOTHER_MODEL)
        last_use = self._stream.last_uses(self._flow)
        longest = max(self._flow, key=lambda place: last_use.get(place, place) - place)
        name, user = self._graph.name(longest), last_use.get(longest, longest)
        return StageFailed(
            f"The model cannot be cut: '{name}' is read again in '{self._graph.name(user)}', "
            "beyond every other tensor.",
            _ANOTHER_MODEL,
        )
