"""What a Mesh says to a PC that does not fit, and what a PC that breaks rules costs."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from meshinfer.core.ids import Epoch, NodeId, RequestId
from meshinfer.errors import PeerLost, ProtocolViolation
from meshinfer.link.base import MESH
from meshinfer.link.memory import memory_pair
from meshinfer.mesh.switchboard import MOST_WAITING
from meshinfer.wire.election import Renew
from meshinfer.wire.forward import AskCancel, FleetReport
from meshinfer.wire.hello import Hello, Refused
from meshinfer.wire.registry import OLDEST_PROTOCOL_VERSION, PROTOCOL_VERSION
from tests.mesh.harness import fleet, stranger
from tests.mesh.virtual_time import run_virtual


def test_other_openvino_is_refused_with_both_versions() -> None:
    """J13."""

    async def main() -> None:
        async with fleet() as lan:
            lan.pc("b").openvino = "2025.1.0"
            a, b = lan.start("a"), lan.start("b", "a")
            await lan.until(lambda: bool(a.mesh.refusals and b.mesh.refusals), 3.0)
            for pc in (a, b):
                assert "2026.4.1" in pc.mesh.refusals[0].reason
                assert "2025.1.0" in pc.mesh.refusals[0].reason
                assert len(pc.view.members) == 1

    run_virtual(main())


def test_a_stranger_hears_nothing_before_hello() -> None:
    """S08: whatever comes first and is not Hello closes the link without an answer."""

    async def main() -> None:
        async with fleet() as lan:
            pc = lan.start("a")
            near, far = memory_pair(MESH, NodeId("x"), pc.node)
            serving = asyncio.create_task(pc.mesh.serve(far))
            await near.send(FleetReport("{}"))
            with pytest.raises(PeerLost):
                await near.receive()
            await serving
            assert len(pc.view.members) == 1

    run_virtual(main())


def test_silence_instead_of_hello_is_closed_after_five_seconds() -> None:
    async def main() -> None:
        async with fleet() as lan:
            pc = lan.start("a")
            near, far = memory_pair(MESH, NodeId("x"), pc.node)
            loop = asyncio.get_running_loop()
            begun = loop.time()
            await pc.mesh.serve(far)
            assert 4.9 < loop.time() - begun < 5.2
            assert near.closed

    run_virtual(main())


def test_a_hello_of_another_protocol_is_answered_with_both_versions() -> None:
    async def main() -> None:
        async with fleet() as lan:
            pc = lan.start("a")
            near, far = memory_pair(MESH, NodeId("x"), pc.node)
            serving = asyncio.create_task(pc.mesh.serve(far))
            await near.send(Hello(7, 9, "8.8", "2026.4.1", b"what nobody here can read"))
            refusal = (await near.receive()).message
            assert isinstance(refusal, Refused)
            assert refusal.code == "version_mismatch"
            assert "7 to 9" in refusal.cause
            assert f"{OLDEST_PROTOCOL_VERSION} to {PROTOCOL_VERSION}" in refusal.cause
            await serving

    run_virtual(main())


def test_a_peer_that_lies_about_leadership_costs_its_link_only() -> None:
    async def main() -> None:
        async with fleet() as lan:
            a, b = lan.start("a"), lan.start("b", "a")
            await lan.until(lan.agreed, 4.0)
            epoch = Epoch(99, NodeId("somebody"))
            await a.mesh.send(b.node, Renew(epoch, 1))
            await lan.until(lambda: b.mesh.violations == {a.node: 1}, 1.0)
            assert b.view.epoch < epoch
            await lan.until(lan.agreed, 10.0)

    run_virtual(main())


def test_a_peer_that_floods_costs_its_link_only() -> None:
    async def main() -> None:
        async with fleet() as lan:
            a, b = lan.start("a"), lan.start("b", "a")
            await lan.until(lan.agreed, 4.0)
            release = asyncio.Event()

            async def slow(_: NodeId, __: object, ___: memoryview) -> None:
                await release.wait()

            a.mesh.route(FleetReport, slow)
            with contextlib.suppress(PeerLost):
                for _ in range(MOST_WAITING + 100):
                    await b.mesh.send(a.node, FleetReport("{}"))
            await lan.until(lambda: b.node in a.mesh.violations, 1.0)
            release.set()
            await lan.until(lan.agreed, 10.0)

    run_virtual(main())


def test_a_handler_that_fails_costs_the_link_not_the_agent() -> None:
    async def main() -> None:
        async with fleet() as lan:
            a, b = lan.start("a"), lan.start("b", "a")
            await lan.until(lan.agreed, 4.0)
            calls: list[object] = []

            def broken(_: NodeId, message: object, __: memoryview) -> None:
                calls.append(message)
                raise ProtocolViolation("not now")

            a.mesh.route(AskCancel, broken)
            await b.mesh.send(a.node, AskCancel(RequestId("1")))
            await lan.until(lambda: a.mesh.violations == {b.node: 1}, 1.0)
            await lan.until(lan.agreed, 10.0)
            assert len(calls) == 1

    run_virtual(main())


def test_what_a_handler_blames_closes_the_link() -> None:
    async def main() -> None:
        async with fleet() as lan:
            a = lan.start("a")

            def strict(*_: object) -> None:
                raise ProtocolViolation("that plan is not yours")

            a.mesh.route(AskCancel, strict)
            near, far = memory_pair(MESH, NodeId("x"), a.node)
            serving = asyncio.create_task(a.mesh.serve(far))
            await near.send(stranger())
            await near.send(AskCancel(RequestId("1")))
            async with asyncio.timeout(2.0):
                await serving
            assert a.mesh.violations == {NodeId("x"): 1}

    run_virtual(main())


def test_a_link_greeted_before_sleep_is_not_used_after_it() -> None:
    """N11: the other side was told the old incarnation."""

    async def main() -> None:
        async with fleet() as lan:
            a = lan.start("a")
            near, far = memory_pair(MESH, a.node, NodeId("x"))
            greeting = asyncio.create_task(a.mesh.greet(near))
            hello = (await far.receive()).message
            await far.send(stranger())
            run = await greeting
            a.wall_offset += 600.0
            assert a.view.leader is None
            await run()
            assert far.closed
            assert a.view.member(NodeId("x")) is None
            assert hello.introduction().incarnation < a.incarnation

    run_virtual(main())
