"""Models and PCs for the tests of the planner: plain values, no behaviour."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from typing import NamedTuple

from meshinfer.core.fleet import Address, Capacity, Device, Member, MemberState
from meshinfer.core.ids import Digest, Epoch, ModelId, NodeId, PlanId
from meshinfer.core.model import ModelShape, Unit, UnitKind, UnitRange
from meshinfer.core.plan import Plan, StagePlan
from meshinfer.mesh.partition import Load
from meshinfer.mesh.planner import PlanOptions, PlanRequest
from meshinfer.mesh.rooms import Room, StageCost


class Cut(NamedTuple):
    """The less the better, in this order."""

    time: float
    fullness: float
    squares: float


MB = 1_000_000
GB = 1_000_000_000
FREE_OF_CHARGE = StageCost(process_bytes=0, cpu_peak=1.0, gpu_peak=1.0, npu_peak=1.0)
"""Needs equal weights and cache: the arithmetic of a test stays readable."""


def shape(
    layers: int,
    layer_bytes: int = 10 * MB,
    embedding_bytes: int = 0,
    head_bytes: int = 0,
    cache_per_token: int = 0,
    context: int = 32768,
) -> ModelShape:
    """A decoder whose layers are equal halves of `layer_bytes`."""
    units = [Unit(UnitKind.EMBEDDING, 0, embedding_bytes, 0, 64)]
    for layer in range(layers):
        units.append(Unit(UnitKind.ATTENTION, layer, layer_bytes // 2, cache_per_token, 64))
        units.append(Unit(UnitKind.FEED_FORWARD, layer, layer_bytes - layer_bytes // 2, 0, 64))
    units.append(Unit(UnitKind.HEAD, layers, head_bytes, 0, 0))
    return ModelShape(
        model=ModelId("toy"),
        digest=Digest("0" * 64),
        units=tuple(units),
        layers=layers,
        hidden_size=16,
        vocabulary_size=32,
        context_length=context,
    )


def cpu(memory: int, precisions: tuple[str, ...] = ("f32", "bf16"), note: str = "") -> Device:
    return Device("CPU", "A processor", memory, precisions, note)


def member(
    name: str,
    free: int,
    state: MemberState = MemberState.ALIVE,
    devices: tuple[Device, ...] | None = None,
    cores: int = 8,
) -> Member:
    """A PC that gives `free` bytes; its node id is its name."""
    devices = (cpu(free),) if devices is None else devices
    return Member(
        node=NodeId(name),
        name=f"pc-{name}",
        state=state,
        capacity=Capacity(4 * free + GB, free, cores, devices, "2026.4.1"),
        agent_addresses=(Address("192.0.2.1", 9470),),
        ring_addresses=(Address(f"{name}.test", 9471),),
    )


def members(*free: int) -> tuple[Member, ...]:
    """PCs a, b, c, ... with so many bytes."""
    return tuple(member(chr(ord("a") + index), size) for index, size in enumerate(free))


def room(
    size: int, name: str = "a", process: int = 0, peak: float = 1.0, speed: float = 1.0
) -> Room:
    return Room(member(name, size), "CPU", size, process, peak, speed)


def request(
    model: ModelShape,
    fleet: Sequence[Member],
    options: PlanOptions | None = None,
    leader: str = "a",
) -> PlanRequest:
    if options is None:
        options = PlanOptions(target_cache_tokens=64, minimum_cache_tokens=32, cost=FREE_OF_CHARGE)
    epoch = Epoch(3, NodeId(leader))
    return PlanRequest(model, tuple(fleet), epoch, PlanId("00112233aabbccdd"), options)


def stages(plan: object) -> tuple[StagePlan, ...]:
    """Of the only pipeline; fails with the reason when there is no plan."""
    assert isinstance(plan, Plan), plan
    assert len(plan.pipelines) == 1
    return plan.pipelines[0].stages


def every_cut(load: Load, rooms: Sequence[Room]) -> Iterator[tuple[UnitRange, ...]]:
    """Brute force: every contiguous cut with no empty range."""
    for inner in combinations(range(1, load.units), len(rooms) - 1):
        edges = (0, *inner, load.units)
        yield tuple(UnitRange(first, end) for first, end in pairwise(edges))


def measured(load: Load, rooms: Sequence[Room], cut: Sequence[UnitRange]) -> Cut:
    """What a cut is judged by."""
    placed = list(zip(rooms, cut, strict=True))
    times = [load.time(one, part.first, part.end) for one, part in placed]
    shares = [load.fullness(one, part.first, part.end) for one, part in placed]
    return Cut(max(times), max(shares), sum(share * share for share in shares))
