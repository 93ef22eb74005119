"""The key and value cache of one compiled stage: two tensors a layer, made of blocks.

Type, shape and block size come from the compiled model's inputs, never from assumptions: they
differ by device and precision (CPU blocks hold 32 tokens, GPU blocks 16; GPU keys lie transposed).
Called by the paged stage on its own thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from meshinfer.core.units import format_bytes
from meshinfer.engine.blocks import BlockCopy, SlotMove
from meshinfer.engine.openvino_error import openvino_errors
from meshinfer.errors import StageFailed

_NO_MOVES = "Cached tokens of this device cannot be moved singly."


class CacheMemory(Protocol):
    """Where cache tensors live."""

    @property
    def largest_bytes(self) -> int | None:
        """The most that one tensor may take; None when only free memory limits it."""
        ...

    def create(self, element_type: Any, shape: list[int]) -> Any: ...

    def copy_block(self, tensor: Any, source: int, target: int) -> None: ...

    @property
    def moves_slots(self) -> bool:
        """Whether the host can write single tokens."""
        ...

    def move_slots(self, tensor: Any, places: NDArray[np.intp]) -> None:
        """`places` is [4, moves]: the fields of SlotMove."""
        ...


class HostMemory:
    """Plain tensors, for the CPU."""

    largest_bytes: int | None = None
    moves_slots = True

    def create(self, element_type: Any, shape: list[int]) -> Any:
        import openvino as ov

        return ov.Tensor(element_type, ov.Shape(shape))

    def copy_block(self, tensor: Any, source: int, target: int) -> None:
        blocks = tensor.data
        blocks[target] = blocks[source]

    def move_slots(self, tensor: Any, places: NDArray[np.intp]) -> None:
        # All are read before one is written; scales of a u8 cache by token lie in the same rows.
        source_block, source_slot, target_block, target_slot = places
        cells = tensor.data
        cells[target_block, :, target_slot] = cells[source_block, :, source_slot]


class DeviceMemory:
    """Remote tensors of a GPU, which the host never maps.

    `context` is the device's RemoteContext, `region` makes a view of a part of a remote tensor
    (genai, kv_cache_manager.hpp, does the same). `largest_bytes` is the driver's limit for a single
    allocation, 4 GiB on many (openvino issue 36386); going beyond it fails late and unclearly.
    Single tokens are not moved: keys lie transposed, [blocks, heads, width, tokens] (intel_gpu,
    paged_attention.hpp), and genai's way of moving them, PaKVReorder, has no Python binding.
    """

    moves_slots = False

    def __init__(
        self,
        context: Any,
        largest_bytes: int | None,
        region: Callable[[Any, list[int], list[int]], Any],
    ) -> None:
        self._context = context
        self.largest_bytes = largest_bytes
        self._region = region

    def create(self, element_type: Any, shape: list[int]) -> Any:
        import openvino as ov

        return self._context.create_tensor(element_type, ov.Shape(shape), {})

    def copy_block(self, tensor: Any, source: int, target: int) -> None:
        self._block(tensor, source).copy_to(self._block(tensor, target))

    def move_slots(self, tensor: Any, places: NDArray[np.intp]) -> None:
        raise StageFailed(_NO_MOVES, "Use chains of drafts there.")

    def _block(self, tensor: Any, block: int) -> Any:
        shape = list(tensor.get_shape())
        begin = [block] + [0] * (len(shape) - 1)
        return self._region(tensor, begin, [block + 1, *shape[1:]])


def memory_of(core: Any, device: str) -> CacheMemory:
    """The memory that `device` computes from. Raises StageFailed."""
    if not device.startswith("GPU"):
        return HostMemory()
    import openvino as ov

    def region(tensor: Any, begin: list[int], end: list[int]) -> Any:
        return ov.RemoteTensor(tensor, ov.Coordinate(begin), ov.Coordinate(end))

    with openvino_errors(f"Opening the memory of {device}", "Use the CPU of that PC."):
        limit = core.get_property(device, "GPU_DEVICE_MAX_ALLOC_MEM_SIZE")
        return DeviceMemory(core.get_default_context(device), int(limit), region)


@dataclass(frozen=True, slots=True)
class CacheTensors:
    """All tensors of one stage, by the name of the input they belong to."""

    memory: CacheMemory
    tensors: dict[str, Any]
    block_count: int
    block_size: int  # tokens
    moves_slots: bool  # whether `move_slots` works

    def copy_blocks(self, copies: Iterable[BlockCopy]) -> None:
        """In order, in every tensor."""
        for copy in copies:
            for tensor in self.tensors.values():
                self.memory.copy_block(tensor, copy.source, copy.target)

    def move_slots(self, moves: Sequence[SlotMove]) -> None:
        """All at once, in every tensor. Raises StageFailed: this cache is laid out otherwise."""
        if not moves:
            return
        if not self.moves_slots:
            raise StageFailed(_NO_MOVES, "Use chains of drafts there.")
        places = np.array(moves, np.intp).T
        for tensor in self.tensors.values():
            self.memory.move_slots(tensor, places)


def allocate(
    compiled: Any, memory: CacheMemory, tokens: int, spare_blocks: int = 0
) -> CacheTensors:
    """Room for at least `tokens`, and blocks beyond that. Raises StageFailed: a tensor is larger
    than the device allows."""
    ports = {
        name: port
        for port in compiled.inputs
        for name in port.names
        if name.startswith(("key_cache.", "value_cache."))
    }
    block_size = _block_size(ports)
    block_count = -(-tokens // block_size) + spare_blocks
    tensors: dict[str, Any] = {}
    for name, port in ports.items():
        shape = [block_count, *_block_shape(name, port)]
        _check_size(name, port, shape, memory.largest_bytes)
        with openvino_errors("Allocating the cache", "Plan with a smaller cache."):
            tensors[name] = memory.create(port.get_element_type(), shape)
    moves_slots = memory.moves_slots and _slots_are_rows(ports)
    return CacheTensors(memory, tensors, block_count, block_size, moves_slots)


def _slots_are_rows(ports: dict[str, Any]) -> bool:
    """Whether keys lie as values do, [blocks, heads, tokens, width]. On the CPU they do, unless
    quantised by channel: then scales lie behind the tokens (measured, OpenVINO 2026.4.1)."""
    return all(
        _block_shape(name, port)[:2]
        == _block_shape(value := name.replace("key_", "value_"), ports[value])[:2]
        for name, port in ports.items()
        if name.startswith("key_cache.")
    )


def _block_size(ports: dict[str, Any]) -> int:
    """Values are [blocks, heads, tokens, width] on every device; keys are not."""
    sizes = {
        _block_shape(name, port)[1]
        for name, port in ports.items()
        if name.startswith("value_cache.")
    }
    if len(sizes) != 1:
        raise StageFailed(
            f"The layers' cache blocks hold {sorted(sizes)} tokens, not all the same.",
            "Use another device.",
        )
    return sizes.pop()


def _block_shape(name: str, port: Any) -> list[int]:
    dimensions = list(port.get_partial_shape())[1:]
    if len(dimensions) != 3 or any(dimension.is_dynamic for dimension in dimensions):
        raise StageFailed(
            f"The device does not say how large a block of {name} is.", "Use another device."
        )
    return [int(dimension.get_length()) for dimension in dimensions]


def _check_size(name: str, port: Any, shape: list[int], largest: int | None) -> None:
    count = 1
    for length in shape:
        count *= length
    size = count * int(port.get_element_type().bitwidth) // 8
    if largest is not None and size > largest:
        raise StageFailed(
            f"The cache tensor {name} needs {format_bytes(size)}, but the device gives at most "
            f"{format_bytes(largest)} in one piece.",
            "Plan with a smaller cache.",
        )
