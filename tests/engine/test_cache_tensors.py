"""The cache is allocated as the compiled model asks for, within the device's limits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from meshinfer.engine.blocks import BlockCopy, SlotMove
from meshinfer.engine.cache_tensors import DeviceMemory, HostMemory, allocate
from meshinfer.errors import StageFailed


@dataclass(frozen=True)
class Dimension:
    length: int | None

    @property
    def is_dynamic(self) -> bool:
        return self.length is None

    def get_length(self) -> int:
        assert self.length is not None
        return self.length


@dataclass(frozen=True)
class ElementType:
    bitwidth: int = 16


@dataclass(frozen=True)
class Port:
    names: frozenset[str]
    shape: tuple[int | None, ...]

    def get_partial_shape(self) -> list[Dimension]:
        return [Dimension(length) for length in self.shape]

    def get_element_type(self) -> ElementType:
        return ElementType()


class Compiled:
    """As much of a compiled model as the cache needs."""

    def __init__(self, **shapes: tuple[int | None, ...]) -> None:
        cache = [
            Port(frozenset({name.replace("_0", ".0").replace("_1", ".1")}), shape)
            for name, shape in shapes.items()
        ]
        self.inputs = [Port(frozenset({"input_ids"}), (None,)), *cache]


class Remote:
    """A device's tensor: only copies between regions reach it."""

    def __init__(self, shape: list[int]) -> None:
        self.cells = np.arange(np.prod(shape)).reshape(shape)

    def get_shape(self) -> list[int]:
        return list(self.cells.shape)


class Region:
    def __init__(self, tensor: Remote, begin: list[int], end: list[int]) -> None:
        self._tensor = tensor
        self._part = tuple(slice(b, e) for b, e in zip(begin, end, strict=True))

    def copy_to(self, other: Region) -> None:
        other._tensor.cells[other._part] = self._tensor.cells[self._part]


@dataclass
class Context:
    made: list[tuple[int, list[int]]] = field(default_factory=list)

    def create_tensor(
        self, element_type: ElementType, shape: Any, properties: dict[str, Any]
    ) -> Any:
        assert properties == {}
        self.made.append((element_type.bitwidth, list(shape)))
        return Remote(list(shape))


# As the GPU plugin lays them out: keys transposed, 16 tokens a block.
GPU = Compiled(
    key_cache_0=(None, 2, 64, 16),
    value_cache_0=(None, 2, 16, 64),
    key_cache_1=(None, 2, 64, 16),
    value_cache_1=(None, 2, 16, 64),
)
TENSOR_BYTES = 4 * 2 * 64 * 16 * 2  # 4 blocks of f16


def test_a_gpu_cache_lives_in_the_devices_context() -> None:
    context = Context()
    cache = allocate(GPU, DeviceMemory(context, TENSOR_BYTES, Region), tokens=60)
    assert (cache.block_size, cache.block_count) == (16, 4)
    assert set(cache.tensors) == {"key_cache.0", "value_cache.0", "key_cache.1", "value_cache.1"}
    assert context.made == [(16, [4, 2, 64, 16]), (16, [4, 2, 16, 64])] * 2


def test_a_tensor_beyond_the_devices_limit_is_refused_before_it_is_made() -> None:
    context = Context()
    with pytest.raises(StageFailed, match=r"key_cache\.0 needs 16\.4 kB.*at most 16\.4 kB"):
        allocate(GPU, DeviceMemory(context, TENSOR_BYTES - 1, Region), tokens=60)
    assert context.made == []


def test_blocks_are_copied_on_the_device_in_every_tensor() -> None:
    cache = allocate(GPU, DeviceMemory(Context(), None, Region), tokens=64)
    before = {name: tensor.cells.copy() for name, tensor in cache.tensors.items()}
    cache.copy_blocks([BlockCopy(0, 2), BlockCopy(2, 3)])
    for name, tensor in cache.tensors.items():
        expected = before[name]
        expected[2] = expected[3] = expected[0]
        np.testing.assert_array_equal(tensor.cells, expected)


def test_layers_with_different_block_sizes_are_refused() -> None:
    uneven = Compiled(value_cache_0=(None, 2, 16, 64), value_cache_1=(None, 2, 32, 64))
    with pytest.raises(StageFailed, match=r"\[16, 32\]"):
        allocate(uneven, HostMemory(), tokens=8)


def test_a_device_that_keeps_its_shape_to_itself_is_refused() -> None:
    with pytest.raises(StageFailed, match=r"value_cache\.0"):
        allocate(Compiled(value_cache_0=(None, None, 16, 64)), HostMemory(), tokens=8)


@pytest.mark.openvino
@pytest.mark.parametrize("name", ["f32", "bf16"])
def test_host_blocks_are_copied_bit_for_bit(name: str) -> None:
    import openvino as ov

    memory = HostMemory()
    tensor = memory.create(getattr(ov.Type, name), [3, 2, 4, 5])
    bits = tensor.data.view(np.uint32 if name == "f32" else np.uint16)
    bits[:] = np.arange(bits.size).reshape(bits.shape)
    memory.copy_block(tensor, 0, 2)
    np.testing.assert_array_equal(bits[2], bits[0])
    assert (bits[1] != bits[0]).all()


CPU = {"key_cache_0": (None, 2, 4, 5), "value_cache_0": (None, 2, 4, 5)}
"""As the CPU plugin lays out f32 and bf16; a u8 cache by token has wider rows."""


@pytest.mark.parametrize(
    ("keys", "moves"),
    [
        ((None, 2, 4, 5), True),
        ((None, 2, 4, 13), True),  # u8 by token: scales in the rows
        ((None, 2, 12, 5), False),  # u8 by channel: scales behind the tokens
    ],
)
def test_slots_move_where_keys_lie_as_rows(keys: tuple[int | None, ...], moves: bool) -> None:
    compiled = Compiled(key_cache_0=keys, value_cache_0=CPU["value_cache_0"])
    memory = DeviceMemory(Context(), None, Region)
    assert not allocate(compiled, memory, tokens=8).moves_slots
    assert allocate(compiled, Plain(), tokens=8).moves_slots == moves


def test_a_cache_whose_slots_stay_refuses_moves_but_not_none_of_them() -> None:
    cache = allocate(GPU, DeviceMemory(Context(), None, Region), tokens=16)
    cache.move_slots(())
    with pytest.raises(StageFailed, match="cannot be moved"):
        cache.move_slots([SlotMove(0, 1, 0, 0)])


class Plain(HostMemory):
    """Of the host, without OpenVINO."""

    def create(self, element_type: Any, shape: list[int]) -> Any:
        return np.zeros(shape, np.uint16)


@pytest.mark.openvino
@pytest.mark.parametrize(
    ("name", "bits"),
    [("f32", np.uint32), ("bf16", np.uint16), ("f16", np.uint16), ("u8", np.uint8)],
)
def test_host_slots_move_bit_for_bit(name: str, bits: Any) -> None:
    import openvino as ov

    memory = HostMemory()
    tensor = memory.create(getattr(ov.Type, name), [3, 2, 4, 5])
    cells = tensor.data.view(bits)
    cells[:] = np.arange(cells.size).reshape(cells.shape)
    expected = cells.copy()
    moves = [SlotMove(0, 2, 0, 1), SlotMove(0, 3, 0, 2), SlotMove(2, 1, 0, 3), SlotMove(2, 3, 1, 0)]
    for move in moves:  # one behind the other, as the text has it
        block, slot = move.source_block, move.source_slot
        expected[move.target_block, :, move.target_slot] = expected[block, :, slot]
    memory.move_slots(tensor, np.array(moves, np.intp).T)
    np.testing.assert_array_equal(tensor.data.view(bits), expected)
