"""The constants of an IR: where each lies in the .bin, read from the XML without OpenVINO.

The XML may come from anywhere, so it is scanned with limits: no document types (entities grow),
no constant outside its file, none that is kept in a way that is not known here. Called by the split
and by the piece index.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from xml.parsers import expat

from meshinfer.errors import ShardCorrupt, StageFailed

MAX_XML_BYTES = 256 << 20
"""A hundred times the XML of a model with 30 layers."""

_MAX_CONSTANTS = 1_000_000
_MAX_BYTES = 1 << 50
_ATTRIBUTES = frozenset({"element_type", "shape", "offset", "size"})
_OTHER_FILE = "Export the model again, so that its weights lie in one .bin."
_DATA_TAG = re.compile(rb"<data\b[^<>]*>")

_BITS = {
    **dict.fromkeys(("u1",), 1),
    **dict.fromkeys(("u2",), 2),
    **dict.fromkeys(("i4", "u4", "nf4", "f4e2m1"), 4),
    **dict.fromkeys(("i8", "u8", "boolean", "f8e4m3", "f8e5m2", "f8e8m0"), 8),
    **dict.fromkeys(("i16", "u16", "f16", "bf16"), 16),
    **dict.fromkeys(("i32", "u32", "f32"), 32),
    **dict.fromkeys(("i64", "u64", "f64"), 64),
}
"""Of an element; types that are not listed (strings, 3 and 6 bits) may have any size."""


@dataclass(frozen=True, slots=True)
class Constant:
    """One Const layer. `tag` is where its <data> element lies in the XML, in bytes, half-open."""

    name: str
    offset: int  # bytes into the .bin
    size: int  # bytes
    element_type: str
    shape: tuple[int, ...]
    tag: tuple[int, int]

    @property
    def elements(self) -> int:
        return prod(self.shape)


def read_constants(xml: Path, weights_bytes: int) -> tuple[Constant, ...]:
    """Of a whole model, in the order of its layers, checked against the size of its .bin. Raises
    ShardCorrupt naming the constant that cannot be right, StageFailed (weights elsewhere)."""
    found = scan(_bounded(xml))
    for one in found:
        if one.offset + one.size > weights_bytes:
            raise ShardCorrupt(
                f"The constant {one.name[:80]!r} lies outside the model's .bin "
                f"({one.offset} + {one.size} of {weights_bytes} bytes).",
                "Get the model again.",
            )
    _refuse_overlaps(found)
    return found


def scan(text: bytes) -> tuple[Constant, ...]:
    """The Const layers of an IR's XML, those in bodies of loops as well. Offsets are as they stand
    there. Raises ShardCorrupt, StageFailed."""
    reader = _Reader(text)
    parser = expat.ParserCreate()
    parser.StartElementHandler = lambda name, attributes: reader.start(
        name, attributes, parser.CurrentByteIndex
    )
    parser.EndElementHandler = reader.end
    parser.StartDoctypeDeclHandler = _refuse_document_type
    try:
        parser.Parse(text, True)
    except expat.ExpatError as error:
        raise ShardCorrupt(f"The model's XML cannot be read: {error}.") from error
    return tuple(reader.found)


def rewrite(text: bytes, places: Sequence[tuple[Constant, int, int]]) -> bytes:
    """The XML with other offsets and sizes: (constant of this text, offset, size), in the order of
    the text."""
    parts, done = [], 0
    for constant, offset, size in places:
        start, end = constant.tag
        tag = _with_number(text[start:end], b"offset", offset)
        parts += [text[done:start], _with_number(tag, b"size", size)]
        done = end
    return b"".join([*parts, text[done:]])


def _with_number(tag: bytes, attribute: bytes, value: int) -> bytes:
    changed, count = re.subn(
        rb"(\s" + attribute + rb"\s*=\s*)(?:\"[^\"]*\"|'[^']*')", rb'\g<1>"%d"' % value, tag
    )
    assert count == 1, f"{attribute!r} stands {count} times in {tag[:200]!r}"
    return changed


class _Reader:
    """Collects Const layers while the parser runs over `text`."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._layers: list[tuple[str, str]] = []  # (type, name) of the layers that are open
        self.found: list[Constant] = []

    def start(self, name: str, attributes: dict[str, str], place: int) -> None:
        if name == "layer":
            self._layers.append((attributes.get("type", ""), attributes.get("name", "")))
        elif name == "data" and self._layers and self._layers[-1][0] == "Const":
            if len(self.found) == _MAX_CONSTANTS:
                raise ShardCorrupt(f"The model has more than {_MAX_CONSTANTS} constants.")
            self.found.append(self._constant(self._layers[-1][1], attributes, place))

    def end(self, name: str) -> None:
        if name == "layer" and self._layers:
            self._layers.pop()

    def _constant(self, name: str, attributes: dict[str, str], place: int) -> Constant:
        strange = attributes.keys() - _ATTRIBUTES
        if strange:
            raise StageFailed(
                f"The constant {name[:80]!r} is kept in a way that is not known here "
                f"({min(strange)[:40]}).",
                _OTHER_FILE,
            )
        tag = _DATA_TAG.match(self._text, place)
        try:
            shape = tuple(int(axis) for axis in attributes["shape"].split(",") if axis.strip())
            offset, size = int(attributes["offset"]), int(attributes["size"])
            kind = attributes["element_type"]
        except (KeyError, ValueError) as error:
            raise ShardCorrupt(f"The constant {name[:80]!r} cannot be read.") from error
        if (
            tag is None
            or min(offset, size, *shape, 0) < 0
            or max(offset, size, *shape) > _MAX_BYTES
        ):
            raise ShardCorrupt(f"The constant {name[:80]!r} has impossible sizes.")
        _check_size(name, kind, shape, size)
        return Constant(name, offset, size, kind, shape, tag.span())


def _check_size(name: str, kind: str, shape: tuple[int, ...], size: int) -> None:
    bits = _BITS.get(kind)
    elements = prod(shape)
    # OpenVINO writes one byte for a constant without elements.
    if bits is None or (elements == 0 and size <= 1) or size == -(-elements * bits // 8):
        return
    raise ShardCorrupt(
        f"The constant {name[:80]!r} of {elements} elements {kind} cannot have {size} bytes."
    )


def _refuse_overlaps(constants: Sequence[Constant]) -> None:
    """Two constants may be the same bytes, and no others may share any."""
    spans = sorted({(one.offset, one.offset + one.size) for one in constants if one.elements})
    for (_, end), (start, _) in pairwise(spans):
        if start < end:
            raise ShardCorrupt(
                f"Two constants of the model overlap at byte {start} of its .bin.",
                "Get the model again.",
            )


def _refuse_document_type(*_: object) -> None:
    raise ShardCorrupt("The model's XML has a document type, which no exporter writes.")


def _bounded(xml: Path) -> bytes:
    size = xml.stat().st_size
    if size > MAX_XML_BYTES:
        raise ShardCorrupt(f"{xml.name} has {size} bytes, over {MAX_XML_BYTES}.")
    return xml.read_bytes()
