from __future__ import annotations

from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from meshinfer.core.fleet import Address, Capacity, FleetView, Member, MemberState
from meshinfer.core.ids import Digest, NodeId
from meshinfer.core.model import StageManifest
from meshinfer.errors import PeerLost
from meshinfer.link.base import TRANSFER, Link
from meshinfer.link.memory import MemoryNetwork
from meshinfer.node.shard_source import MOST_SOURCES, ShardSource, worth_asking
from meshinfer.weights.exchange import Exchange
from meshinfer.weights.piece_server import PieceServer
from meshinfer.weights.store import Store
from tests.weights.swarm import CountingLink, publish_small

ME = NodeId("me")
NOTHING = Capacity(memory_total=1, memory_free=1, cores=1, devices=(), openvino="none")


@dataclass
class Lan:
    """Members by name; the first is the leader."""

    folder: Path
    executor: ThreadPoolExecutor
    network: MemoryNetwork = field(default_factory=MemoryNetwork)
    members: list[Member] = field(default_factory=list)
    sent: dict[str, list[Digest]] = field(default_factory=dict)
    dialled: list[NodeId] = field(default_factory=list)

    @property
    def view(self) -> FleetView:
        return FleetView(ME, tuple(self.members), leader=NodeId("pc0"))

    def pc(self, *addresses: Address) -> Store:
        """A member that says it is at `addresses` and listens at the last of them."""
        number = len(self.members)
        node = NodeId(f"pc{number}")
        where = addresses or (Address("memory", number + 1),)
        member = Member(node, str(node), MemberState.ALIVE, NOTHING, where, ())
        self.members.append(member)
        store = Store(self.folder / str(node))
        server = PieceServer(Exchange(store, self.executor))
        sent = self.sent.setdefault(str(node), [])

        async def serve(link: Link) -> None:
            self.dialled.append(node)
            await server.serve(CountingLink(link, sent))

        self.network.listen(where[-1], node, {TRANSFER: serve})
        return store

    def source(self) -> ShardSource:
        mine = Exchange(Store(self.folder / "mine"), self.executor)
        return ShardSource(mine, self.network.dialer(ME, Address("memory", 999)), self)

    async def fetch(self, manifest: StageManifest, *names: str) -> Path:
        nodes = tuple(map(NodeId, names))
        return await self.source().fetch(manifest, nodes, lambda done, total: None)


@pytest.fixture
async def lan(tmp_path: Path) -> AsyncIterator[Lan]:
    with ThreadPoolExecutor(2) as executor:
        lan = Lan(tmp_path, executor)
        yield lan
        await lan.network.close()


@pytest.mark.parametrize(
    ("named", "asked"),
    [
        (["pc3", "pc1", "pc0"], ["pc0", "pc3", "pc1"]),
        (["me", "pc1", "pc1", "me"], ["pc1"]),
        ([], []),
        ([f"pc{n}" for n in range(20, -1, -1)], ["pc0", *[f"pc{n}" for n in range(20, 13, -1)]]),
    ],
)
def test_who_is_asked(named: list[str], asked: list[str]) -> None:
    view = FleetView(ME, (), leader=NodeId("pc0"))
    assert worth_asking(map(NodeId, named), view) == asked
    assert len(asked) <= MOST_SOURCES


async def test_what_a_follower_lacks_comes_from_the_leader(lan: Lan) -> None:
    manifest = publish_small(lan.pc(), 30)
    publish_small(lan.pc(), 30)
    publish_small(lan.pc(), 10)
    folder = await lan.fetch(manifest, "pc0", "pc2")
    assert folder.name == manifest.digest
    assert len(set(lan.sent["pc0"])) >= 20
    assert set(lan.dialled) == {NodeId("pc0"), NodeId("pc2")}


async def test_this_pc_is_no_source_of_its_own_and_nobody_is_asked_twice(lan: Lan) -> None:
    manifest = publish_small(lan.pc(), 3)
    await lan.fetch(manifest, "me", "pc0", "pc0", "me")
    assert lan.dialled == ["pc0"]


async def test_addresses_are_tried_in_order(lan: Lan) -> None:
    manifest = publish_small(lan.pc(Address("memory", 77), Address("memory", 78)), 3)
    await lan.fetch(manifest, "pc0")
    assert lan.dialled == ["pc0"]


async def test_a_source_that_is_no_member_any_more_does_no_harm(lan: Lan) -> None:
    manifest = publish_small(lan.pc(), 3)
    assert (await lan.fetch(manifest, "gone", "pc0")).name == manifest.digest


async def test_nobody_to_ask(lan: Lan) -> None:
    manifest = publish_small(Store(lan.folder / "elsewhere"), 3)
    with pytest.raises(PeerLost):
        await lan.fetch(manifest, "me")


async def test_of_many_sources_some_are_asked_and_always_the_leader(lan: Lan) -> None:
    manifest = publish_small(lan.pc(), 12)
    names = [f"pc{number}" for number in range(3 * MOST_SOURCES)]
    for _ in names[1:]:
        lan.pc()
    await lan.fetch(manifest, *reversed(names))
    assert len(set(lan.dialled)) <= MOST_SOURCES
    assert "pc0" in lan.dialled
    assert len(lan.sent["pc0"]) == 13
