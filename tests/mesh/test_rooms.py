"""What a PC could hold."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshinfer.core.fleet import MemberState
from meshinfer.core.ids import NodeId
from meshinfer.mesh.rooms import StageCost, device_for, distinct, rooms_of, with_speeds
from tests.mesh.fleets import FREE_OF_CHARGE, GB, MB, cpu, member, members, room

GPU = replace(cpu(GB, ("f32", "f16")), name="GPU.0")


def test_the_first_device_that_is_let_and_computes_in_the_precision() -> None:
    pc = member("a", GB, devices=(GPU, cpu(GB)))
    assert device_for(pc, "f32") == GPU
    assert device_for(pc, "bf16") == cpu(GB)
    assert device_for(pc, "f8") is None
    held_back = member("a", GB, devices=(replace(GPU, note="failed"), cpu(GB)))
    assert device_for(held_back, "f32") == cpu(GB)


def test_rooms_are_compared_by_the_weights_that_fill_them() -> None:
    cost = StageCost(process_bytes=100 * MB, cpu_peak=1.0, gpu_peak=2.0)
    fleet = (member("a", GB, devices=(GPU,)), member("b", 700 * MB), member("c", 700 * MB))
    rooms = rooms_of(fleet, "f32", cost, NodeId("c"))
    assert [one.node for one in rooms] == ["c", "b", "a"]
    assert [one.weight_capacity for one in rooms] == [600 * MB, 600 * MB, 450 * MB]


def test_a_room_smaller_than_a_process_holds_nothing() -> None:
    assert room(50, process=100).weight_capacity == 0


def test_a_doubled_member_counts_once_and_alive() -> None:
    dead = member("a", GB, MemberState.DEAD)
    alive = member("a", 2 * GB)
    other = member("b", GB)
    for order in ((dead, alive, other), (alive, other, dead), (other, alive, dead)):
        assert distinct(order) == (alive, other)


def test_peaks_by_kind_of_device() -> None:
    cost = StageCost(cpu_peak=1.1, gpu_peak=2.2, npu_peak=3.3)
    assert cost.peak_factor("CPU") == 1.1
    assert cost.peak_factor("GPU.1") == cost.peak_factor("GPU") == 2.2
    assert cost.peak_factor("NPU") == 3.3


def test_a_cost_below_the_weights_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="never takes less"):
        StageCost(cpu_peak=0.9)
    with pytest.raises(ValueError, match="never takes less"):
        StageCost(process_bytes=-1)


def test_nobody_alive_has_no_room() -> None:
    fleet = tuple(replace(one, state=MemberState.SUSPECT) for one in members(GB, GB))
    assert rooms_of(fleet, "f32", FREE_OF_CHARGE, NodeId("a")) == ()


def test_a_pc_of_unknown_speed_counts_as_the_slowest() -> None:
    """Nobody has measured: all are equal. The figure is a field of Device or not there at all."""
    rooms = rooms_of(members(GB, GB), "f32", FREE_OF_CHARGE, NodeId("a"))
    assert [one.speed for one in rooms] == [1.0, 1.0]
    known = [room(GB, "a", speed=3.0), room(GB, "b", speed=0.0), room(GB, "c", speed=2.0)]
    assert [one.speed for one in with_speeds(known)] == [3.0, 2.0, 2.0]
