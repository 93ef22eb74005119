"""What crosses a cut: the hidden state, and every other value that is made before and read after.

In most decoders nothing but the hidden state crosses. Where layers share keys and values with
earlier ones, or read inputs of their own that are computed in front (Gemma 3n, Gemma 4), those
cross too, each at its narrowest place: new keys and values before they join the past, slices of the
front's values rather than all of them. Called by the cut search; pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from meshinfer.errors import StageFailed
from meshinfer.weights.graph import READ_VALUE, SHAPE_OF, Graph, dimensions
from meshinfer.weights.key_values import ATTENTION, Caches

MAX_HIDDEN_SIZES = 8
"""A cut that carries more numbers a token than so many hidden states is refused."""

_COPIES = frozenset(
    {"Broadcast", "Concat", "Convert", "Gather", "Reshape", "Slice", "Split", "Squeeze"}
    | {"StridedSlice", "Tile", "Transpose", "Unsqueeze", "VariadicSplit"}
)
"""What both sides of a cut may compute: it moves numbers and makes none."""

_ANOTHER_CUT = "Choose another cut, or another model."

Output = tuple[int, int]  # place of an operation, number of its output


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value for every token: two axes of unknown length, batch and length in that order, and
    known ones around them."""

    place: int
    port: int
    axes: tuple[int | None, ...]

    @property
    def width(self) -> int:
        """Numbers a token."""
        return prod(axis for axis in self.axes if axis is not None)

    @property
    def output(self) -> Output:
        return self.place, self.port


@dataclass(frozen=True, slots=True)
class Crossing:
    """The tensors that cross one cut: the hidden state first, the others in the model's order."""

    tensors: tuple[Tensor, ...]

    @property
    def width(self) -> int:
        return sum(tensor.width for tensor in self.tensors)

    @property
    def places(self) -> frozenset[int]:
        return frozenset(tensor.place for tensor in self.tensors)


def token_tensor(graph: Graph, output: Output) -> Tensor | None:
    """The tensor at an output; None unless it is f32 with exactly batch and length unknown."""
    place, port = output
    found = graph.nodes[place].output(port)
    axes = dimensions(found)
    if axes is None or axes.count(None) != 2:
        return None
    if found.get_element_type().get_type_name() != "f32":
        return None
    return Tensor(place, port, axes)


def segment(
    graph: Graph, caches: Caches, entry: frozenset[int], ends: Iterable[int]
) -> frozenset[int]:
    """Everything that a stage computes: what `ends` are made from, back to the places `entry`, with
    the states that it reads and all that is written to them. Shapes are followed no further."""

    def stop(place: int) -> bool:
        return place in entry or graph.kinds[place] == SHAPE_OF

    found: set[int] = set()
    waiting = set(ends)
    while waiting:
        found |= graph.behind(waiting, stop)
        sinks = {
            caches.assigns[place]
            for place in found
            if graph.kinds[place] == READ_VALUE and place in caches.assigns
        }
        waiting = sinks - found
    return frozenset(found)


class Crossings:
    """Answers, for a place of the hidden state, what crosses a cut behind it.

    `tokens` are the token ids, `logits` the Result; `stream` is `key_values.stream_graph`.
    """

    def __init__(
        self, graph: Graph, stream: Graph, caches: Caches, tokens: int, logits: int
    ) -> None:
        self._graph = graph
        self._caches = caches
        self._logits = logits
        self._made = graph.reached_from(tokens)  # depends on the tokens' values
        attentions = {place for place, kind in enumerate(stream.kinds) if kind == ATTENTION}
        attended = _led_to(stream, attentions)
        deep = {place for place in attentions if not attended.isdisjoint(stream.sources[place])}
        self._front = self._made - attended - set(caches.behind)  # no attention led there
        self._late = _led_to(stream, deep)  # two attentions, one behind the other, led there

    def at(self, place: int) -> Crossing | None:
        """None for a place within an attention or feed-forward part. Raises StageFailed naming the
        tensor that cannot cross."""
        hidden = token_tensor(self._graph, (place, 0))
        assert hidden is not None
        behind = self._behind(place)
        needed = self._needed(place)
        for output, users in needed.items():
            if output in behind and not self._is_aside(output[0], users):
                return None
        extras: set[Output] = set()
        for output in needed:
            extras.update(self._narrowest(output, behind))
        tensors = [hidden]
        for output in sorted(extras):
            tensor = token_tensor(self._graph, output)
            assert tensor is not None
            tensors.append(tensor)
        crossing = Crossing(tuple(tensors))
        if crossing.width > MAX_HIDDEN_SIZES * hidden.width:
            widest = max(tensors[1:], key=lambda tensor: tensor.width)
            raise _refusal(
                f"with '{self._graph.name(widest.place)}', {crossing.width} numbers a token would "
                f"cross ({hidden.width} are the hidden state)"
            )
        return crossing

    def _needed(self, cut: int) -> dict[Output, set[int]]:
        """Values that are read behind the cut and are not made from its hidden state, with the
        operations that read them. A cache that is read behind it is kept there as well."""
        after = self._graph.reached_from(cut)
        needed: dict[Output, set[int]] = {}
        seen: set[int] = set()
        waiting = [self._logits]
        while waiting:
            place = waiting.pop()
            if place in seen or place == cut:
                continue
            seen.add(place)
            if self._graph.kinds[place] == READ_VALUE and place in self._caches.assigns:
                waiting.append(self._caches.assigns[place])
            if self._graph.kinds[place] == SHAPE_OF:
                continue
            for source, port in self._graph.inputs(place):
                if source in after or self._caches.is_long(source):
                    waiting.append(source)
                elif source in self._made:
                    needed.setdefault((source, port), set()).add(place)
        return needed

    def _behind(self, cut: int) -> frozenset[Output]:
        """Outputs that the hidden state at the cut is made from."""
        found = self._graph.behind([cut], lambda place: place not in self._made)
        return frozenset(
            output
            for place in found
            if self._graph.kinds[place] != SHAPE_OF
            for output in self._graph.inputs(place)
        )

    def _is_aside(self, place: int, users: set[int]) -> bool:
        """Whether a value that the hidden state is made from too may cross beside it: new keys and
        values of shared caches, and what is computed in front and read by later layers only."""
        if all(self._caches.is_long(user) for user in users):
            return True
        return place in self._front and users <= self._late

    def _narrowest(self, output: Output, behind: frozenset[Output]) -> set[Output]:
        """Where to take a value: as late as possible among its narrowest forms.

        What the hidden state is made from is computed in front of the cut: from there on, only
        copies may be made once more behind it.
        """
        best = token_tensor(self._graph, output)
        current = output
        while True:
            place, _ = current
            kind = self._graph.kinds[place]
            sources = {source for source in self._graph.inputs(place) if source[0] in self._made}
            if kind in (ATTENTION, "Parameter") or (current in behind and kind not in _COPIES):
                sources = set()
            if len(sources) != 1:
                break
            (current,) = sources
            tensor = token_tensor(self._graph, current)
            if tensor is not None and (best is None or tensor.width < best.width):
                best = tensor
        if best is not None:
            return {best.output}
        if sources:
            return {one for source in sources for one in self._narrowest(source, behind)}
        raise _refusal(
            f"'{self._graph.name(output[0])}' is read again behind it, and is no f32 value for "
            "every token"
        )


def _refusal(why: str) -> StageFailed:
    return StageFailed(f"The model cannot be cut there: {why}.", _ANOTHER_CUT)


def _led_to(graph: Graph, starts: set[int]) -> set[int]:
    """Places whose values depend on any of `starts`, with them."""
    reached = set(starts)
    for place in range(len(graph.nodes)):
        if graph.kinds[place] != SHAPE_OF and not reached.isdisjoint(graph.sources[place]):
            reached.add(place)
    return reached
