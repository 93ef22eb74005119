"""How much of a model each PC could hold, and how fast it would compute it.

Members and the cost of a stage enter, rooms leave: one for each PC that could hold a stage, with
the device it would use and how fast that is. Called by the planner only; pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from meshinfer.core.fleet import Device, Member, MemberState
from meshinfer.core.ids import NodeId

PROCESS_BYTES = 150_000_000
"""What a stage host holds beside weights and cache: Python, OpenVINO, its buffers.

Measured on OpenVINO 2026.4.1, CPU: 53 MB after importing it, 98 MB with a compiled model before its
first step; the rest is for the activations of a prompt chunk, the links and TLS.
"""

CPU_PEAK = 1.3
"""Peak memory of a compiled stage over the size of its weights.

Measured on the CPU with 84 MB of u4 weights: private memory grew by 1.26 times their size, because
the plugin repacks them. The mapped file comes on top (1.0 times) but the system may take it back.
"""

GPU_PEAK = 2.0
"""Integrated GPUs before Xe2 copy host weights while loading (openvinotoolkit/model_server#4035,
openvino#34187): the peak counts, not the steady state."""


@dataclass(frozen=True, slots=True)
class StageCost:
    """What a stage takes from its PC beside its cache; a property of the engine."""

    process_bytes: int = PROCESS_BYTES
    cpu_peak: float = CPU_PEAK  # peak while loading / bytes of weights
    gpu_peak: float = GPU_PEAK
    npu_peak: float = GPU_PEAK

    def __post_init__(self) -> None:
        if self.process_bytes < 0 or min(self.cpu_peak, self.gpu_peak, self.npu_peak) < 1.0:
            raise ValueError("a stage never takes less than its weights")

    def peak_factor(self, device: str) -> float:
        """By OpenVINO's name of the device: `CPU`, `GPU.0`, `NPU`."""
        kind = device.partition(".")[0].upper()
        return {"CPU": self.cpu_peak, "NPU": self.npu_peak}.get(kind, self.gpu_peak)


@dataclass(frozen=True, slots=True)
class Room:
    """What one PC could give to a stage on its best device."""

    member: Member
    device: str
    size: int  # bytes
    process_bytes: int
    peak_factor: float
    speed: float = 1.0  # bytes of weights a second, or a figure in proportion to it

    @property
    def node(self) -> NodeId:
        return self.member.node

    def need(self, weight_bytes: int, cache_bytes: int) -> int:
        """Bytes that a stage would take here at its peak."""
        return self.process_bytes + math.ceil(self.peak_factor * weight_bytes) + cache_bytes

    @property
    def weight_capacity(self) -> float:
        """Bytes of weights that would fill this room: how rooms on unlike devices compare."""
        return max(0, self.size - self.process_bytes) / self.peak_factor


def device_for(member: Member, precision: str) -> Device | None:
    """The first device that this PC lets a stage use and that computes in `precision`.

    The PC itself puts its devices in order of preference and notes why it holds one back.
    """
    usable = (one for one in member.capacity.devices if not one.note)
    return next((one for one in usable if precision in one.precisions), None)


def room_of(member: Member, precision: str, cost: StageCost) -> Room | None:
    """None when the PC is not alive or has no device for a stage."""
    device = device_for(member, precision)
    if device is None or member.state is not MemberState.ALIVE:
        return None
    # A device may report more than its PC gives away (an iGPU's share of the host's memory).
    size = max(0, min(device.memory, member.capacity.memory_free))
    factor = cost.peak_factor(device.name)
    return Room(member, device.name, size, cost.process_bytes, factor, device.speed)


def distinct(members: Iterable[Member]) -> tuple[Member, ...]:
    """Each PC once, whatever the order they came in; a doubled one counts as alive if any is."""
    ranked = sorted(members, key=lambda one: (one.node, one.state is not MemberState.ALIVE))
    return tuple({one.node: one for one in reversed(ranked)}.values())[::-1]


def rooms_of(
    members: Iterable[Member], precision: str, cost: StageCost, leader: NodeId
) -> tuple[Room, ...]:
    """Rooms by the weights they hold, largest first; among equals the leader, then by node id."""
    found = [room_of(member, precision, cost) for member in distinct(members)]
    rooms = with_speeds([room for room in found if room is not None])
    return tuple(
        sorted(rooms, key=lambda room: (-room.weight_capacity, room.node != leader, room.node))
    )


def with_speeds(rooms: Sequence[Room]) -> list[Room]:
    """A PC of unknown speed counts as the slowest known one: it is never given more than its share.

    When none is known all are equal.
    """
    slowest = min((room.speed for room in rooms if room.speed > 0), default=1.0)
    return [room if room.speed > 0 else replace(room, speed=slowest) for room in rooms]
