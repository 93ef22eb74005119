"""Four followers pull over real TLS from a leader with a narrow uplink, while heartbeats go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from meshinfer.core.fleet import Address, Capacity
from meshinfer.core.ids import NO_EPOCH, NodeId
from meshinfer.core.model import StageManifest
from meshinfer.link.base import MESH, TRANSFER, Link
from meshinfer.link.dialer import WebSocketDialer
from meshinfer.link.identity import Identity, found, join
from meshinfer.link.server import LinkServer
from meshinfer.link.trust import Trust
from meshinfer.mesh.timing import MeshTiming
from meshinfer.weights.exchange import Exchange
from meshinfer.weights.piece_server import PieceServer
from meshinfer.weights.store import Store
from meshinfer.weights.throttle import UploadLimit
from meshinfer.weights.transfer import Source, pull_stage
from meshinfer.wire.membership import Heartbeat
from tests.weights.stage_maker import publish

pytestmark = pytest.mark.slow

FOLLOWERS = 4
PIECES = 30
RATE = 20_000_000
BEAT_S = 0.02
CAPACITY = Capacity(memory_total=1, memory_free=1, cores=1, devices=(), openvino="none")


@dataclass
class Pc:
    """An agent's links without the agent: pieces and heartbeats on one port."""

    node: NodeId
    address: Address
    dialer: WebSocketDialer
    exchange: Exchange
    gaps: list[float] = field(default_factory=list)

    def source(self, other: Pc, spare: bool) -> Source:
        return Source(lambda: self.dialer.dial(other.address, TRANSFER, other.node), spare)

    async def pull(self, manifest: StageManifest, leader: Pc, others: list[Pc]) -> None:
        sources = [self.source(leader, True), *[self.source(one, False) for one in others]]
        await pull_stage(manifest, sources, self.exchange, lambda done, total: None)

    async def hear(self, leader: Pc) -> None:
        """Heartbeats of the leader, and how long each was waited for."""
        link = await self.dialer.dial(leader.address, MESH, leader.node)
        loop = asyncio.get_running_loop()
        try:
            while True:
                began = loop.time()
                await link.receive()
                self.gaps.append(loop.time() - began)
        finally:
            await link.close()


async def beat(link: Link) -> None:
    sequence = 0
    while True:
        sequence += 1
        await link.send(Heartbeat(sequence, 0, NO_EPOCH, NO_EPOCH, 0, CAPACITY, False))
        await asyncio.sleep(BEAT_S)


@asynccontextmanager
async def agent(
    identity: Identity, folder: Path, executor: ThreadPoolExecutor, rate: int | None
) -> AsyncIterator[Pc]:
    trust = Trust(identity)
    exchange = Exchange(Store(folder), executor, UploadLimit(rate))
    handlers = {MESH: beat, TRANSFER: PieceServer(exchange).serve}
    server = LinkServer(trust, handlers, lambda refusal: None)
    address = await server.start(Address("127.0.0.1", 0))
    async with WebSocketDialer(trust) as dialer:
        try:
            yield Pc(identity.node, address, dialer, exchange)
        finally:
            await server.close()


async def test_heartbeats_go_on_while_four_followers_pull(tmp_path: Path) -> None:
    """D12: nobody is taken for dead, and the uplink carries the stage about once."""
    founder = found(tmp_path / "leader")
    assert founder.code is not None
    members = [join(tmp_path / f"f{number}", founder.code) for number in range(FOLLOWERS)]
    with ThreadPoolExecutor(4) as executor:
        async with AsyncExitStack() as stack:
            leader = await stack.enter_async_context(
                agent(founder, tmp_path / "store", executor, RATE)
            )
            followers = [
                await stack.enter_async_context(
                    agent(member, tmp_path / f"store{number}", executor, None)
                )
                for number, member in enumerate(members)
            ]
            manifest, _ = publish(leader.exchange.store, PIECES)
            hearing = [asyncio.create_task(one.hear(leader)) for one in followers]
            loop = asyncio.get_running_loop()
            began = loop.time()
            async with asyncio.timeout(60), asyncio.TaskGroup() as pulls:
                for one in followers:
                    others = [other for other in followers if other is not one]
                    pulls.create_task(one.pull(manifest, leader, others))
            seconds = loop.time() - began
            for task in hearing:
                task.cancel()
            await asyncio.wait(hearing)
    assert seconds >= 0.9 * manifest.size / RATE - 0.1  # the limit held
    for one in followers:
        assert one.exchange.store.verified_folder(manifest.digest) is not None
        assert len(one.gaps) >= 10
        assert max(one.gaps) < MeshTiming().suspect_s - MeshTiming().heartbeat_s
