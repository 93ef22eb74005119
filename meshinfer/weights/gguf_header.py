"""What a GGUF file says about itself: metadata and the table of tensors, never their data.

A path enters, a GgufHeader leaves. Called when a GGUF is opened. The file may
come from anywhere: every count is compared with the bytes that are left before anything is built.
Format: ggml, docs/gguf.md.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meshinfer.errors import ShardCorrupt

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_U32, _U64 = _SCALARS[4], _SCALARS[10]
_MAX_ENTRIES = 65_536  # of metadata; real files have about 30
_MAX_TENSORS = 1 << 20
_MAX_AXES = 8
_LONGEST_STRING = 1 << 24
_ALIGNMENT, _MOST_ALIGNMENT = 32, 1 << 20
_SMALLEST_ENTRY = 8 + 4 + 1  # bytes: empty key, type, smallest value
_SMALLEST_TENSOR = 8 + 4 + 4 + 8


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """`shape` has the axis that is contiguous first, as GGUF writes it: (columns, rows)."""

    name: str
    shape: tuple[int, ...]
    kind: int  # ggml_type
    offset: int = 0  # of its data, behind GgufHeader.data_start


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """`metadata` values are int, float, bool, str or a tuple of these; `spans` has the bytes of the
    file, first and behind the last, that hold an entry."""

    metadata: Mapping[str, Any]
    tensors: tuple[TensorInfo, ...]
    data_start: int = 0
    spans: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", ""))

    def of_architecture(self, key: str) -> Any:
        """The value of `ARCHITECTURE.key`; None when the file has none."""
        return self.metadata.get(f"{self.architecture}.{key}")


def read_header(path: Path) -> GgufHeader:
    """Raises ShardCorrupt: no GGUF file, an unknown version, sizes beyond the file's end."""
    with path.open("rb") as file:
        if path.stat().st_size < 24:
            raise ShardCorrupt(f"{path.name} is no GGUF file: it is too short.")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _Reader(data).header()
            except ValueError as error:
                raise ShardCorrupt(f"{path.name} is no sound GGUF file: {error}.") from error


class _Reader:
    """A position in the file; everything it raises is ValueError (UnicodeDecodeError is one)."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0

    def header(self) -> GgufHeader:
        if self._take(4) != _MAGIC:
            raise ValueError("the first bytes are not GGUF")
        version = self._scalar(_U32)
        if version not in _VERSIONS:
            raise ValueError(f"version {version} is not known")
        tensors = self._count(_SMALLEST_TENSOR, _MAX_TENSORS, "tensors")
        entries = self._count(_SMALLEST_ENTRY, _MAX_ENTRIES, "metadata entries")
        metadata: dict[str, Any] = {}
        spans: dict[str, tuple[int, int]] = {}
        for _ in range(entries):
            first = self._at
            key = self._string()
            if key in metadata:
                raise ValueError(f"the key {key[:60]} is there twice")
            metadata[key] = self._value(self._scalar(_U32))
            spans[key] = (first, self._at)
        table = tuple(self._tensor() for _ in range(tensors))
        unit = _alignment(metadata)
        return GgufHeader(metadata, table, -(-self._at // unit) * unit, spans)

    def _take(self, size: int) -> bytes:
        if size > len(self._data) - self._at:
            raise ValueError(f"{size} bytes are announced where fewer are left")
        taken = self._data[self._at : self._at + size]
        self._at += size
        return taken

    def _scalar(self, layout: struct.Struct) -> Any:
        return layout.unpack(self._take(layout.size))[0]

    def _count(self, smallest: int, most: int, what: str) -> int:
        """A count of things that need at least `smallest` bytes each."""
        count = int(self._scalar(_U64))
        if count > most or count * smallest > len(self._data) - self._at:
            raise ValueError(f"{count} {what} are announced")
        return count

    def _string(self) -> str:
        return self._take(self._count(1, _LONGEST_STRING, "characters")).decode("utf-8")

    def _token(self) -> str:
        """A string within an array: vocabularies may hold halves of characters."""
        data = self._take(self._count(1, _LONGEST_STRING, "characters"))
        return data.decode("utf-8", errors="replace")

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array(self._scalar(_U32))
        return self._scalar(self._layout(kind))

    def _array(self, kind: int) -> tuple[Any, ...]:
        if kind == _STRING:
            count = self._count(_U64.size, len(self._data), "strings")
            return tuple(self._token() for _ in range(count))
        layout = self._layout(kind)  # arrays of arrays are refused here
        count = self._count(layout.size, len(self._data), "values")
        return tuple(value for (value,) in layout.iter_unpack(self._take(count * layout.size)))

    def _layout(self, kind: int) -> struct.Struct:
        layout = _SCALARS.get(kind)
        if layout is None:
            raise ValueError(f"a value of the unknown type {kind}")
        return layout

    def _tensor(self) -> TensorInfo:
        name = self._string()
        axes = self._scalar(_U32)
        if axes > _MAX_AXES:
            raise ValueError(f"the tensor {name[:60]} has {axes} axes")
        shape = tuple(self._scalar(_U64) for _ in range(axes))
        kind = self._scalar(_U32)
        return TensorInfo(name, shape, kind, self._scalar(_U64))


def _alignment(metadata: Mapping[str, Any]) -> int:
    unit = metadata.get("general.alignment", _ALIGNMENT)
    if not isinstance(unit, int) or not 8 <= unit <= _MOST_ALIGNMENT or unit % 8:
        raise ValueError(f"tensors are said to be aligned to {str(unit)[:20]} bytes")
    return unit
