"""Which bytes the constants of a cut stage are: those of the whole model wherever that can be
shown, else their own. Called by the split.

The stage's ov.Model has its constants mapped from the whole's .bin. Once one of them was compared
with the piece index, addresses tell where the others lie, and none of them is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from meshinfer.errors import StageFailed
from meshinfer.weights.constants import Constant
from meshinfer.weights.layout import Content
from meshinfer.weights.piece_index import PieceIndex, Span, digests_of

_AGAIN = "Export the model again with a current optimum-intel."
_BODIES = ("get_function", "get_then_body", "get_else_body")


@dataclass(frozen=True, slots=True)
class StageConstant:
    """A constant of the stage's XML. `origin` is where a large one begins in the whole's .bin; a
    large one that is new has its bytes in `own`."""

    content: Content
    origin: int | None
    own: memoryview | None


def match(
    model: Any, constants: Sequence[Constant], index: PieceIndex
) -> tuple[StageConstant, ...]:
    """For each of `constants` (of the serialised `model`, in order) what it holds. Raises
    StageFailed: names do not tell constants apart, or one has no bytes."""
    nodes = _nodes(model)
    matcher = _Matcher(index)
    return tuple(matcher.match(_node(nodes, constant), constant) for constant in constants)


class _Matcher:
    def __init__(self, index: PieceIndex) -> None:
        self._index = index
        self._base: int | None = None  # address at which the whole's .bin is mapped
        self._spans = {digests: span for span, digests in index.rows.items()}

    def match(self, node: Any, constant: Constant) -> StageConstant:
        address, data = _bytes_of(node, constant)
        if not Content(b"", constant.size).large:
            return StageConstant(Content(bytes(data), constant.size), None, None)
        span = self._mapped(address, constant)
        if span is not None:
            return self._of_whole(span)
        digests = digests_of(len(data), lambda offset, size: bytes(data[offset : offset + size]))
        span = self._spans.get(digests)
        if span is not None and span[1] == constant.size:
            self._learn(address, constant, span)
            return self._of_whole(span)
        return StageConstant(Content(digests, constant.size), None, data)

    def _mapped(self, address: int, constant: Constant) -> Span | None:
        if self._base is None:
            return None
        span = (address - self._base, constant.size)
        return span if span in self._index.rows else None

    def _of_whole(self, span: Span) -> StageConstant:
        return StageConstant(Content(self._index.rows[span], span[1]), span[0], None)

    def _learn(self, address: int, constant: Constant, span: Span) -> None:
        """Equal bytes may lie in the whole more than once: only a name says which they are."""
        named = self._index.constants.get(constant.name)
        if self._base is None and named is not None and (named.offset, named.size) == span:
            self._base = address - named.offset


def _nodes(model: Any) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for node in _constants(model):
        found.setdefault(str(node.get_friendly_name()), []).append(node)
    return found


def _constants(model: Any) -> Iterator[Any]:
    for node in model.get_ops():
        if node.get_type_name() == "Constant":
            yield node
        for name in _BODIES:
            if hasattr(node, name):
                yield from _constants(getattr(node, name)())


def _node(nodes: dict[str, list[Any]], constant: Constant) -> Any:
    named = nodes.get(constant.name, [])
    if len(named) != 1:
        raise StageFailed(
            f"{len(named)} constants of the stage are named {constant.name[:80]!r}.", _AGAIN
        )
    return named[0]


def _bytes_of(node: Any, constant: Constant) -> tuple[int, memoryview]:
    """Address and bytes, as they stand in memory; nothing is copied."""
    import numpy as np

    if constant.elements == 0:  # OpenVINO writes a byte for it
        return 0, memoryview(bytes(constant.size))
    data = node.data
    if data.nbytes != constant.size or not data.flags.c_contiguous:
        raise StageFailed(
            f"The constant {constant.name[:80]!r} has {data.nbytes} bytes, not {constant.size}.",
            _AGAIN,
        )
    flat = data.reshape(-1).view(np.uint8)
    return int(flat.ctypes.data), memoryview(flat)
