"""PCs that pull the same stage from a leader and from each other, in memory and in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from meshinfer.core.fleet import Address
from meshinfer.core.ids import Digest, ModelId, NodeId
from meshinfer.core.model import StageManifest, UnitRange
from meshinfer.link.base import TRANSFER, Link
from meshinfer.link.memory import MemoryNetwork
from meshinfer.weights.exchange import Exchange
from meshinfer.weights.manifest import build_manifest, describe_file
from meshinfer.weights.patience import Patience
from meshinfer.weights.piece_server import PieceServer
from meshinfer.weights.store import Store
from meshinfer.weights.throttle import UploadLimit
from meshinfer.weights.transfer import Source, pull_stage
from meshinfer.wire.transfer import PieceData

PIECE = 10_000
"""Bytes of a piece: a segment each, so that a stage of many pieces is small."""


def publish_small(store: Store, pieces: int, seed: int = 0) -> StageManifest:
    """A stage of a graph and `pieces` pieces of weights. Equal seeds give equal pieces."""
    with store.scratch() as scratch:
        graph, weights = scratch / "openvino_model.xml", scratch / "openvino_model.bin"
        graph.write_bytes(f"<net seed='{seed}' pieces='{pieces}'/>".encode())
        data = [random.Random(f"{seed}/{n}").randbytes(PIECE) for n in range(pieces)]
        weights.write_bytes(b"".join(data))
        files = [describe_file(graph), describe_file(weights, [PIECE] * pieces)]
        units = UnitRange(seed, seed + 1)
        manifest = build_manifest(ModelId("m"), Digest("a" * 64), units, "2026.4.1", files)
        store.publish(scratch, manifest)
    return manifest


class CountingLink:
    """A link that counts the pieces sent on it."""

    def __init__(self, link: Link, sent: list[Digest]) -> None:
        self._link = link
        self._sent = sent
        self.peer, self.address = link.peer, link.address
        self.receive, self.close = link.receive, link.close

    async def send(self, message: object, payload: bytes | bytearray | memoryview = b"") -> None:
        if isinstance(message, PieceData):
            self._sent.append(message.digest)
        await self._link.send(message, payload)


@dataclass
class Pc:
    """A PC with a store of its own, served to whoever dials."""

    node: NodeId
    address: Address
    exchange: Exchange
    network: MemoryNetwork
    sent: list[Digest] = field(default_factory=list)
    bad: list[NodeId] = field(default_factory=list)
    told: list[tuple[int, int]] = field(default_factory=list)

    @property
    def store(self) -> Store:
        return self.exchange.store

    async def serve(self, link: Link) -> None:
        await PieceServer(self.exchange).serve(CountingLink(link, self.sent))

    def source(self, other: Pc, spare: bool = False) -> Source:
        dialer = self.network.dialer(self.node, self.address)
        return Source(lambda: dialer.dial(other.address, TRANSFER, other.node), spare)

    async def pull(
        self,
        manifest: StageManifest,
        sources: Sequence[Source],
        patience: Patience = Patience(),  # noqa: B008
    ) -> Path:
        return await pull_stage(
            manifest,
            sources,
            self.exchange,
            lambda done, total: self.told.append((done, total)),
            patience,
        )


class Swarm:
    """`leader` and followers by number; work for threads is done on the loop (see VirtualLoop)."""

    def __init__(self, folder: Path, followers: int, rate: int | None, seed: int = 0) -> None:
        self._folder = folder
        self._executor = ThreadPoolExecutor(1)  # never used by a VirtualLoop
        self._random = random.Random(seed)
        self.network = MemoryNetwork()
        self.leader = self._pc("leader", rate)
        self.followers = [self._pc(f"f{number}", None) for number in range(followers)]

    def _pc(self, name: str, rate: int | None) -> Pc:
        number = len(self.network._listeners) + 1
        address, node = Address("memory", number), NodeId(name)
        bad: list[NodeId] = []
        exchange = Exchange(
            Store(self._folder / name),
            self._executor,
            UploadLimit(rate),
            lambda node, why: bad.append(node),
            self._random.randrange,
        )
        pc = Pc(node, address, exchange, self.network, bad=bad)
        self.network.listen(address, node, {TRANSFER: pc.serve})
        return pc

    def sources(self, me: Pc) -> list[Source]:
        """The leader and all other followers."""
        others = [me.source(other) for other in self.followers if other is not me]
        return [me.source(self.leader, spare=True), *others]

    async def pull_all(self, manifest: StageManifest, *pcs: Pc) -> float:
        """All (or `pcs`) pull at once. Returns the seconds that it took."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with asyncio.TaskGroup() as tasks:
            for pc in pcs or self.followers:
                tasks.create_task(pc.pull(manifest, self.sources(pc)))
        return loop.time() - began

    async def close(self) -> None:
        await self.network.close()
        self._executor.shutdown()


def quick(**changes: float) -> Patience:
    return replace(Patience(), **changes)  # type: ignore[arg-type]
