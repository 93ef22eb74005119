"""Safetensors files for tests, by the book: a length, a JSON table, the data."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any


def table_bytes(table: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = table if isinstance(table, bytes) else json.dumps(table).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def safetensors_bytes(tensors: Mapping[str, int]) -> bytes:
    """Tensors of so many F32 zeros each."""
    table: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    place = 0
    for name, count in tensors.items():
        table[name] = {"dtype": "F32", "shape": [count], "data_offsets": [place, place + 4 * count]}
        place += 4 * count
    return table_bytes(table, bytes(place))
