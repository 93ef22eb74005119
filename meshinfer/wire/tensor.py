"""Activations as bytes. The receiver knows type and shape from its plan and only compares.

bfloat16 has no numpy type: it travels and is held as uint16 bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshinfer.errors import ProtocolViolation

PORT_TYPES: dict[str, np.dtype[Any]] = {
    "f32": np.dtype("<f4"),
    "bf16": np.dtype("<u2"),
    "f16": np.dtype("<f2"),
}
"""Names that a plan may use for the ports between stages, and what their bits lie in."""


def port_dtype(precision: str) -> np.dtype[Any]:
    """The numpy type that holds activations of `precision`. Raises ProtocolViolation."""
    try:
        return PORT_TYPES[precision]
    except KeyError:
        raise ProtocolViolation(f"'{precision}' is no port type") from None


def tensor_bytes(tensor: NDArray[Any]) -> memoryview:
    """The raw bytes of a tensor, without a copy when it is contiguous."""
    if not tensor.size:
        return memoryview(b"")  # a view of nothing cannot be cast
    return np.ascontiguousarray(tensor).data.cast("B")


def tensor_from(data: memoryview, precision: str, rows: int, columns: int) -> NDArray[Any]:
    """A [rows, columns] view of `data`. Raises ProtocolViolation unless the size is exact."""
    dtype = port_dtype(precision)
    expected = rows * columns * dtype.itemsize
    if len(data) != expected:
        raise ProtocolViolation(
            f"a tensor of {len(data)} bytes where {rows} x {columns} {precision} "
            f"= {expected} bytes belong"
        )
    return np.frombuffer(data, dtype).reshape(rows, columns)
