"""Real Meshes over MemoryNetwork, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random

from meshinfer.core.fleet import Address, Capacity, FleetView
from meshinfer.core.ids import NO_EPOCH, Epoch, NodeId
from meshinfer.link.base import MESH
from meshinfer.link.memory import MemoryNetwork
from meshinfer.mesh.hints import Hint, PeerFound
from meshinfer.mesh.runner import Mesh
from meshinfer.mesh.timing import MeshTiming
from meshinfer.mesh.world import Me, World
from meshinfer.wire import codec
from meshinfer.wire.hello import Hello, Introduction
from meshinfer.wire.registry import OLDEST_PROTOCOL_VERSION, PROTOCOL_VERSION

CAPACITY = Capacity(16 << 30, 8 << 30, 4, (), "2026.4.1")


class MemoryEpochs:
    """An EpochStore that survives a restart of its Mesh, not of the test."""

    def __init__(self) -> None:
        self.epoch = NO_EPOCH

    def load(self) -> Epoch:
        return self.epoch

    def save(self, epoch: Epoch) -> None:
        self.epoch = max(self.epoch, epoch)


class MemoryPeers:
    def __init__(self) -> None:
        self.known: dict[NodeId, tuple[Address, ...]] = {}

    def load(self) -> dict[NodeId, tuple[Address, ...]]:
        return dict(self.known)

    def save(self, known: dict[NodeId, tuple[Address, ...]]) -> None:
        self.known = dict(known)


@dataclass
class Pc:
    """One PC: what stays when its agent is killed, and the running Mesh."""

    node: NodeId
    address: Address
    epochs: MemoryEpochs = field(default_factory=MemoryEpochs)
    peers: MemoryPeers = field(default_factory=MemoryPeers)
    incarnation: int = 0
    wall_offset: float = 0.0
    holds_model: bool = False
    openvino: str = "2026.4.1"
    running: Mesh | None = None
    task: asyncio.Task[None] | None = None

    @property
    def mesh(self) -> Mesh:
        assert self.running is not None
        return self.running

    @property
    def view(self) -> FleetView:
        return self.mesh.view

    def next_incarnation(self) -> int:
        self.incarnation += 1
        return self.incarnation


class Fleet:
    """`pc(name)` makes a PC, `start` runs its agent, `kill` ends it without a word."""

    def __init__(self, timing: MeshTiming | None = None) -> None:
        self.network = MemoryNetwork()
        self.pcs: dict[str, Pc] = {}
        self._timing = timing or MeshTiming()

    def pc(self, name: str) -> Pc:
        if name not in self.pcs:
            address = Address(f"10.0.0.{len(self.pcs) + 1}", 7000)
            self.pcs[name] = Pc(NodeId(name), address)
        return self.pcs[name]

    def start(self, name: str, *seeds: str, hints: AsyncIterator[Hint] | None = None) -> Pc:
        """`seeds` name PCs whose addresses this one is told."""
        pc = self.pc(name)
        told = tuple(self.pc(seed).address for seed in seeds)
        loop = asyncio.get_running_loop()
        world = World(
            clock=loop.time,
            wall_clock=lambda: loop.time() + pc.wall_offset,
            random=Random(name),
            epochs=pc.epochs,
            known_peers=pc.peers,
            capacity=lambda: Capacity(16 << 30, 8 << 30, 4, (), pc.openvino),
            holds_model=lambda: pc.holds_model,
            next_incarnation=pc.next_incarnation,
        )
        me = Me(pc.node, name, pc.next_incarnation(), (pc.address,), (), "1.0")
        dialer = self.network.dialer(pc.node, pc.address)
        pc.running = Mesh(me, dialer, world, self._timing, told, hints)
        self.network.listen(pc.address, pc.node, {MESH: pc.running.serve})
        pc.task = asyncio.create_task(pc.running.run())
        return pc

    async def kill(self, name: str) -> None:
        pc = self.pcs[name]
        await self.network.kill(pc.node)
        await self._end(pc)

    async def _end(self, pc: Pc) -> None:
        task, pc.task = pc.task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled() and (error := task.exception()):
                raise error
        pc.running = None

    async def close(self) -> None:
        for pc in self.pcs.values():
            await self._end(pc)
        await self.network.close()

    def running(self) -> list[Pc]:
        return [pc for pc in self.pcs.values() if pc.running is not None]

    def agreed(self) -> bool:
        """All running PCs see each other alive and follow the same leader in the same epoch."""
        views = [pc.view for pc in self.running()]
        alive = [{one.node for one in view.members if one.state == "alive"} for view in views]
        everyone = {pc.node for pc in self.running()}
        positions = {(view.leader, view.epoch) for view in views}
        return (
            len(positions) == 1 and views[0].leader is not None and alive == [everyone] * len(alive)
        )

    async def until(self, condition: Callable[[], bool], deadline_s: float) -> float:
        """Seconds until `condition` holds. Fails the test after `deadline_s`."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        while not condition():
            assert loop.time() - begun < deadline_s, f"not within {deadline_s} s"
            await asyncio.sleep(0.02)
        return loop.time() - begun


@asynccontextmanager
async def fleet(timing: MeshTiming | None = None) -> AsyncIterator[Fleet]:
    made = Fleet(timing)
    try:
        yield made
    finally:
        await made.close()


async def found(*pcs: Pc) -> AsyncIterator[Hint]:
    """Discovery that tells of `pcs` at once and then of nobody."""
    for pc in pcs:
        yield PeerFound(pc.node, "f", (pc.address,))  # type: ignore[arg-type]


async def three(lan: Fleet) -> list[Pc]:
    """Three PCs that have agreed."""
    pcs = [lan.start("a", "b"), lan.start("b", "c"), lan.start("c", "a")]
    await lan.until(lan.agreed, 6.0)
    return pcs


def stranger() -> Hello:
    """The greeting of a PC that a test plays by hand."""
    told = Introduction("x", 1, 5, NO_EPOCH, NO_EPOCH, (), (), CAPACITY, holds_model=False)
    return Hello(
        OLDEST_PROTOCOL_VERSION, PROTOCOL_VERSION, "1.0", CAPACITY.openvino, codec.encode(told)
    )
