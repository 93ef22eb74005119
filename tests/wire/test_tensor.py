"""Activations as bytes."""

from __future__ import annotations

import numpy as np
import pytest

from meshinfer.errors import ProtocolViolation
from meshinfer.wire.tensor import PORT_TYPES, port_dtype, tensor_bytes, tensor_from


def test_f32_has_the_literal_bytes() -> None:
    data = tensor_bytes(np.array([[1.0, -2.0]], np.float32))
    assert bytes(data) == bytes.fromhex("0000803f 000000c0")


@pytest.mark.parametrize("precision", PORT_TYPES)
def test_round_trip_keeps_every_bit(precision: str) -> None:
    bits = np.arange(12, dtype=np.uint32).reshape(3, 4).astype(port_dtype(precision))
    back = tensor_from(tensor_bytes(bits), precision, 3, 4)
    assert back.tobytes() == bits.tobytes()
    assert back.shape == (3, 4)


def test_a_contiguous_tensor_is_not_copied() -> None:
    tensor = np.zeros((2, 2), np.float32)
    view = tensor_bytes(tensor)
    tensor[0, 0] = 1.0
    assert bytes(view[:4]) == bytes.fromhex("0000803f")


def test_a_slice_keeps_its_values() -> None:
    whole = np.arange(8, dtype=np.float32).reshape(2, 4)
    back = tensor_from(tensor_bytes(whole[:, ::2]), "f32", 2, 2)
    assert back.tolist() == [[0.0, 2.0], [4.0, 6.0]]


@pytest.mark.parametrize("size", [0, 1, 15, 17, 32])
def test_any_other_size_is_refused(size: int) -> None:
    with pytest.raises(ProtocolViolation, match="2 x 2 f32 = 16 bytes"):
        tensor_from(memoryview(bytes(size)), "f32", 2, 2)


@pytest.mark.parametrize("name", ["", "O", "V1000000000", "float32", "f64"])
def test_only_known_port_types(name: str) -> None:
    with pytest.raises(ProtocolViolation):
        port_dtype(name)
