"""Messages of other conversations between Meshes: order, room, a slow reader."""

from __future__ import annotations

import asyncio

import pytest

from meshinfer.core.fleet import MemberState
from meshinfer.core.ids import NodeId
from meshinfer.errors import PeerLost
from meshinfer.link.base import MESH
from meshinfer.link.memory import memory_pair
from meshinfer.wire.forward import FleetReport
from tests.mesh.harness import fleet, found, stranger, three
from tests.mesh.virtual_time import run_virtual


def test_messages_are_neither_lost_nor_reordered_while_links_are_unified() -> None:
    async def main() -> None:
        async with fleet() as lan:
            ways = [lan.network.direction(NodeId(x), NodeId(y)) for x, y in ("ab", "ba")]
            for way in ways:
                way.delay_s = 0.02
            a = lan.start("a", "b", hints=found(lan.pc("b")))
            b = lan.start("b", "a", hints=found(lan.pc("a")))
            got: dict[str, list[str]] = {"a": [], "b": []}
            for pc in (a, b):
                pc.mesh.route(
                    FleetReport, lambda _, told, __, pc=pc: got[pc.node].append(told.document)
                )
            await lan.until(lambda: len(a.view.members) == len(b.view.members) == 2, 2.0)
            for number in range(300):
                for way in ways:  # what is sent on the new link could overtake what was on the old
                    way.delay_s = 0.0 if number % 7 else 0.1
                await a.mesh.send(b.node, FleetReport(str(number)))
                await b.mesh.send(a.node, FleetReport(str(number)))
                await asyncio.sleep(0.001)
            await asyncio.sleep(1.0)
            assert got["a"] == got["b"] == [str(number) for number in range(300)]

    run_virtual(main())


def test_messages_to_oneself_are_queued_not_recursive() -> None:
    async def main() -> None:
        async with fleet() as lan:
            pc = lan.start("a")
            order: list[str] = []

            async def again(sender: NodeId, message: FleetReport, _: memoryview) -> None:
                order.append(f"begin {message.document}")
                if message.document == "1":
                    await pc.mesh.send(sender, FleetReport("2"))
                order.append(f"end {message.document}")

            pc.mesh.route(FleetReport, again)
            await pc.mesh.send(pc.node, FleetReport("1"))
            await lan.until(lambda: len(order) == 4, 1.0)
            assert order == ["begin 1", "end 1", "begin 2", "end 2"]

    run_virtual(main())


def test_a_slow_handler_neither_kills_the_sender_nor_stops_others() -> None:
    """N08, the mesh part: what is slow here is not the peer's silence."""

    async def main() -> None:
        async with fleet() as lan:
            await three(lan)
            a, b, c = (lan.pc(name) for name in "abc")
            release = asyncio.Event()
            heard: list[NodeId] = []

            async def slow(sender: NodeId, _: object, __: memoryview) -> None:
                if sender == b.node:
                    await release.wait()
                heard.append(sender)

            a.mesh.route(FleetReport, slow)

            for _ in range(1000):
                await b.mesh.send(a.node, FleetReport("x" * 10000))
            await asyncio.sleep(12.0)
            await c.mesh.send(a.node, FleetReport("{}"))
            await lan.until(lambda: c.node in heard, 1.0)
            assert lan.agreed()
            release.set()
            await lan.until(lambda: heard.count(b.node) == 1000, 5.0)
            assert not a.mesh.violations

    run_virtual(main())


def test_sending_to_a_pc_that_is_not_linked_raises() -> None:
    async def main() -> None:
        async with fleet() as lan:
            pc = lan.start("a")
            with pytest.raises(PeerLost):
                await pc.mesh.send(NodeId("z"), FleetReport("{}"))

    run_virtual(main())


def test_a_peer_that_does_not_read_holds_up_nobody_else() -> None:
    """Its own mail waits; heartbeats with the others, and their mail, go on."""

    async def main() -> None:
        async with fleet() as lan:
            pcs = await three(lan)
            a, b = pcs[0], pcs[1]
            near, far = memory_pair(MESH, NodeId("x"), a.node)
            await near.send(stranger())
            serving = asyncio.create_task(a.mesh.serve(far))
            await lan.until(lambda: a.view.member(NodeId("x")) is not None, 1.0)

            async def flood() -> None:
                while True:
                    await a.mesh.send(NodeId("x"), FleetReport("x" * 200_000))

            got: list[str] = []
            b.mesh.route(FleetReport, lambda _, told, __: got.append(told.document))
            flooding = asyncio.create_task(flood())
            for number in range(30):
                await asyncio.sleep(0.1)
                await a.mesh.send(b.node, FleetReport(str(number)))
            await asyncio.sleep(0.1)
            assert got == [str(number) for number in range(30)]
            assert not flooding.done()
            with pytest.raises(PeerLost):  # it is dead after five seconds, and its mail with it
                await flooding
            await serving
            assert a.view.member(NodeId("x")).state is MemberState.DEAD  # type: ignore[union-attr]
            assert a.view.member(b.node).state is MemberState.ALIVE  # type: ignore[union-attr]

    run_virtual(main())
