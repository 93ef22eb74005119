"""Writes GGUF files, version 3: a header first, then each tensor's data as it comes.

Called for the small files that openvino_genai's reader gets. Format: ggml, docs/gguf.md.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from meshinfer.weights.disk import disk_errors
from meshinfer.weights.gguf_types import row_bytes

_ALIGNMENT = 32
_U32, _F32, _BOOL, _STRING, _ARRAY, _I32 = 4, 6, 7, 8, 9, 5


@dataclass(frozen=True, slots=True)
class TensorToWrite:
    """`shape` as in TensorInfo; `data` gives its bytes in pieces, in order, when asked."""

    name: str
    shape: tuple[int, ...]
    kind: int
    data: Callable[[], Iterable[bytes]]

    @property
    def bytes(self) -> int:
        return row_bytes(self.kind, self.shape[0]) * prod(self.shape[1:])


def write_gguf(
    path: Path,
    metadata: Mapping[str, Any],
    tensors: Sequence[TensorToWrite],
    entries: Sequence[bytes] = (),
) -> None:
    """`metadata` values are bool, int (written as u32), float, str, or sequences of str or int;
    `entries` are whole entries as another file has them. Raises DiskFull."""
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata) + len(entries))]
    parts += [_string(key) + _value(value) for key, value in metadata.items()]
    parts += entries
    offset = 0
    for tensor in tensors:
        axes = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape)
        parts += [_string(tensor.name), axes, struct.pack("<IQ", tensor.kind, offset)]
        offset += _padded(tensor.bytes)
    with disk_errors(path.parent), path.open("wb") as file:
        header = b"".join(parts)
        file.write(header.ljust(_padded(len(header)), b"\0"))
        for tensor in tensors:
            written = sum(file.write(piece) for piece in tensor.data())
            assert written == tensor.bytes, tensor.name
            file.write(bytes(_padded(written) - written))


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _string(text: str) -> bytes:
    data = text.encode("utf-8")
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    match value:
        case bool():
            return struct.pack("<I?", _BOOL, value)
        case int():
            return struct.pack("<II", _U32, value)
        case float():
            return struct.pack("<If", _F32, value)
        case str():
            return struct.pack("<I", _STRING) + _string(value)
    if value and isinstance(value[0], str):
        texts = b"".join(_string(text) for text in value)
        return struct.pack("<IIQ", _ARRAY, _STRING, len(value)) + texts
    return struct.pack(f"<IIQ{len(value)}i", _ARRAY, _I32, len(value), *value)
