"""An IR that a stranger made, looked at before OpenVINO reads it: whether its constants lie within
the .bin, what they are, and what the file says about itself.

The path of an XML enters, an IrOutline leaves. Called by `prebuilt`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from xml.parsers import expat

from meshinfer.errors import ShardCorrupt
from meshinfer.weights.constants import read_constants

_MOST_DEPTH = 64
_READ_BYTES = 1 << 20
_AGAIN = "Fetch the model again; if it stays so, choose another."


@dataclass(frozen=True, slots=True)
class IrOutline:
    """`information` is the model's own rt_info: a path of names -> value. `weights` are bytes of
    constants by element type."""

    information: Mapping[tuple[str, ...], str]
    weights: Mapping[str, int]


def read_outline(xml: Path) -> IrOutline:
    """Raises ShardCorrupt: no IR, damaged, constants beyond the .bin or over each other.
    StageFailed: weights in other files."""
    binary = xml.with_suffix(".bin")
    try:
        size = binary.stat().st_size
        constants = read_constants(xml, size)
    except FileNotFoundError as error:
        name = xml.name if not xml.is_file() else binary.name
        raise ShardCorrupt(f"{name} is missing.", _AGAIN) from error
    weights: Counter[str] = Counter()
    for constant in constants:
        weights[constant.element_type] += constant.size
    return IrOutline(_information(xml), weights)


def _information(xml: Path) -> dict[tuple[str, ...], str]:
    scan = _Scan(xml.name)
    parser = expat.ParserCreate()
    parser.StartElementHandler = scan.start
    parser.EndElementHandler = scan.end
    try:
        with xml.open("rb") as file:
            while chunk := file.read(_READ_BYTES):
                parser.Parse(chunk, False)
        parser.Parse(b"", True)
    except expat.ExpatError as error:
        raise ShardCorrupt(f"{xml.name} is damaged.", _AGAIN) from error
    if not scan.is_network:
        raise ShardCorrupt(f"{xml.name} is no OpenVINO IR.", _AGAIN)
    return scan.found


@dataclass(slots=True)
class _Scan:
    """One pass over a file whose constants were looked at already."""

    name: str
    is_network: bool = False
    found: dict[tuple[str, ...], str] = field(default_factory=dict)
    _open: list[str] = field(default_factory=list)

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        if not self._open:
            self.is_network = tag == "net"
        self._open.append(tag)
        if len(self._open) > _MOST_DEPTH:
            raise ShardCorrupt(f"{self.name} is nested without end.", _AGAIN)
        if self._open[:2] == ["net", "rt_info"] and "value" in attributes:
            own = attributes.get("name", "") if tag == "info" else tag
            self.found[(*self._open[2:-1], own)] = attributes["value"]

    def end(self, tag: str) -> None:
        del tag
        self._open.pop()
