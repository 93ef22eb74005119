"""What a safetensors file says about itself: its table of tensors, never their data.

A path enters, a checked table leaves. Sizes are compared with the file before anything is
allocated, so a damaged or hostile file costs little and is told apart from a whole one. Called by
`checkpoint`.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from meshinfer.core.units import format_bytes
from meshinfer.errors import ShardCorrupt

BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "I64": 64, "U64": 64, "F64": 64, "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip
"""Bits of one element (safetensors, tensor.rs)."""

MOST_HEADER_BYTES = 100_000_000
"""As safetensors itself (tensor.rs, MAX_HEADER_SIZE)."""

_MOST_DIMENSIONS = 16
_AGAIN = "Fetch the file again."
_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Bytes `begin`..`end` behind the header hold the tensor `name`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class SafetensorsHeader:
    tensors: tuple[TensorEntry, ...]  # in the order of their data
    data_offset: int  # of the first tensor in the file


def read_header(path: Path) -> SafetensorsHeader:
    """Raises ShardCorrupt: truncated, no safetensors, an unknown type of number, or tensors that
    leave the file, overlap, or leave a gap."""
    with path.open("rb") as file:
        size = path.stat().st_size
        head = file.read(_LENGTH.size)
        if len(head) < _LENGTH.size:
            raise _damaged(path, f"it has {size} bytes")
        (length,) = _LENGTH.unpack(head)
        if length > MOST_HEADER_BYTES or length > size - _LENGTH.size:
            raise _damaged(
                path, f"its header claims {length} bytes and the file has {format_bytes(size)}"
            )
        text = file.read(length)
    start = _LENGTH.size + length
    tensors = tuple(sorted(_entries(path, text), key=lambda one: (one.begin, one.end)))
    _check_places(path, tensors, size - start)
    return SafetensorsHeader(tensors, start)


def _entries(path: Path, text: bytes) -> list[TensorEntry]:
    if not text.startswith(b"{"):
        raise _damaged(path, "its header is no table")
    try:
        table = json.loads(text, object_pairs_hook=_without_doubles)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise _damaged(path, "its header cannot be read") from error
    table.pop("__metadata__", None)
    return [_entry(path, name, entry) for name, entry in table.items()]


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a name twice")
    return table


def _entry(path: Path, name: str, entry: Any) -> TensorEntry:
    match entry:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [begin, end]}:
            numbers = [*shape, begin, end]
        case _:
            raise _damaged(path, f"the entry of {name[:80]!r} is not complete")
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise _damaged(path, f"the entry of {name[:80]!r} holds no plain numbers")
    if dtype not in BITS:
        raise ShardCorrupt(
            f"{path.name} holds numbers of the type {dtype[:30]!r} ({name[:80]}), "
            "which meshinfer does not know.",
            "Choose a checkpoint in F32, F16 or BF16.",
        )
    if len(shape) > _MOST_DIMENSIONS or prod(shape) * BITS[dtype] != 8 * (end - begin):
        raise _damaged(path, f"the shape of {name[:80]!r} does not fit its bytes")
    return TensorEntry(name, dtype, tuple(shape), begin, end)


def _check_places(path: Path, tensors: tuple[TensorEntry, ...], size: int) -> None:
    """Tensors lie side by side and fill the file, as safetensors writes them."""
    done = 0
    for tensor in tensors:
        if tensor.end > size:
            raise _damaged(
                path, f"{tensor.name[:80]!r} ends at {tensor.end} and only {size} bytes are there"
            )
        if tensor.begin != done:
            where = "overlaps another" if tensor.begin < done else "leaves a gap before it"
            raise _damaged(path, f"{tensor.name[:80]!r} {where}")
        done = tensor.end
    if done != size:
        raise _damaged(path, f"{size - done} bytes belong to no tensor")


def _damaged(path: Path, why: str) -> ShardCorrupt:
    return ShardCorrupt(f"{path.name} is damaged: {why}.", _AGAIN)
