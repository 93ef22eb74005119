"""How the constants of a stage lie in its .bin: small ones together at the front, every large one
as a segment of its own. Pure. Called by the split.

A segment starts a row of pieces, so a weight has the same pieces in every stage that has it, and
another split moves only what is new.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshinfer.core.model import PIECE_BYTES, piece_count
from meshinfer.errors import StageFailed
from meshinfer.weights.constants import MAX_XML_BYTES
from meshinfer.weights.manifest import MAX_PIECES, MAX_SEGMENTS

LARGE_BYTES = 64 << 10
"""From here on a constant is a segment. What is smaller moves again with every split: under 1 MB a
billion weights."""

ALIGNMENT = 64
"""Bytes, as OpenVINO aligns constants in memory; the padding belongs to what stands before it."""


_XML_PIECES = MAX_XML_BYTES // PIECE_BYTES


@dataclass(frozen=True, slots=True)
class Content:
    """What a constant holds. Equal keys mean equal bytes: a small constant's key is its bytes, a
    large one's the digests of its pieces."""

    key: bytes
    size: int  # bytes

    @property
    def large(self) -> bool:
        return self.size >= LARGE_BYTES


@dataclass(frozen=True, slots=True)
class Layout:
    """`offsets[i]` is where constant i begins in the .bin, in bytes. `segments` are the sizes of
    its segments, padding included: the small one, unless `small` is empty, then those of the
    constants `large`."""

    offsets: tuple[int, ...]
    small: bytes
    segments: tuple[int, ...]
    large: tuple[int, ...]


def lay_out(contents: Sequence[Content]) -> Layout:
    """Equal contents lie in one place; the order is that of their first constant. Raises
    StageFailed when there are more large ones than a manifest may name."""
    places: dict[tuple[bool, bytes], int] = {}
    small: list[bytes] = []
    end = 0
    for content in contents:
        if not content.large and (False, content.key) not in places:
            places[False, content.key] = end
            small.append(content.key.ljust(padded(content.size), b"\0"))
            end += padded(content.size)
    segments = [end] if end else []
    large: list[int] = []
    for number, content in enumerate(contents):
        if content.large and (True, content.key) not in places:
            places[True, content.key] = end
            large.append(number)
            segments.append(padded(content.size))
            end += padded(content.size)
    if len(segments) > MAX_SEGMENTS or piece_count(segments) > MAX_PIECES - _XML_PIECES:
        raise StageFailed(
            f"The stage has {len(segments)} large weights of {end} bytes, more than one may have.",
            "Cut the model into more stages.",
        )
    offsets = tuple(places[content.large, content.key] for content in contents)
    return Layout(offsets, b"".join(small), tuple(segments), tuple(large))


def padded(size: int) -> int:
    """Bytes with their padding."""
    return -(-size // ALIGNMENT) * ALIGNMENT
