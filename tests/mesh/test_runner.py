"""Meshes of several PCs: joining, leading, losing, leaving, talking."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

import pytest

from meshinfer.core.fleet import MemberState
from meshinfer.core.ids import NO_EPOCH, Epoch, NodeId, RequestId
from meshinfer.errors import DiskFull, PeerLost, ProtocolViolation
from meshinfer.link.base import MESH
from meshinfer.link.memory import memory_pair
from meshinfer.mesh.switchboard import MOST_WAITING
from meshinfer.mesh.timing import MeshTiming
from meshinfer.wire import codec
from meshinfer.wire.election import Renew
from meshinfer.wire.forward import AskCancel, FleetReport
from meshinfer.wire.hello import Hello, Introduction, Refused
from tests.mesh.harness import CAPACITY, Fleet, MemoryEpochs, Pc, fleet, found
from tests.mesh.virtual_time import run_virtual


def test_a_lone_pc_leads_itself_after_a_second() -> None:
    async def main() -> None:
        async with fleet() as lan:
            pc = lan.start("a")
            took_s = await lan.until(lambda: pc.view.leads, 2.0)
            assert took_s > 0.8
            assert pc.mesh.accepts(pc.view.epoch, pc.node)
            assert pc.epochs.epoch == pc.view.epoch

    run_virtual(main())


def test_discovery_to_member_and_one_leader() -> None:
    async def main() -> None:
        async with fleet() as lan:
            lan.pc("b")
            lan.start("a", hints=found(lan.pc("b")))
            lan.start("b")
            both = lan.running()
            await lan.until(lambda: all(len(pc.view.members) == 2 for pc in both), 0.5)
            await lan.until(lan.agreed, 3.0)

    run_virtual(main())


def test_one_seed_introduces_everybody() -> None:
    """J02: mDNS off, every PC knows one other at most; peer exchange does the rest."""

    async def main() -> None:
        async with fleet() as lan:
            lan.start("a")
            lan.start("b", "a")
            lan.start("c", "a")
            lan.start("d", "c")
            await lan.until(lan.agreed, 6.0)
            assert all(len(pc.view.members) == 4 for pc in lan.running())

    run_virtual(main())


def test_a_restarted_pc_finds_the_fleet_without_seed_or_mdns() -> None:
    """J02: also after either restarts; from peers.json or because the other redials."""

    async def main() -> None:
        async with fleet() as lan:
            lan.start("a")
            lan.start("b", "a")
            await lan.until(lan.agreed, 5.0)
            await asyncio.sleep(6.0)
            assert set(lan.pc("a").peers.known) == {"b"}
            for name in ("a", "b"):
                await lan.kill(name)
                lan.start(name)
                await lan.until(lan.agreed, 8.0)

    run_virtual(main())


def test_both_dial_and_one_link_remains() -> None:
    async def main() -> None:
        async with fleet() as lan:
            for source in "ab":
                for target in "ab":
                    lan.network.direction(NodeId(source), NodeId(target)).delay_s = 0.05
            a = lan.start("a", "b", hints=found(lan.pc("b")))
            b = lan.start("b", "a", hints=found(lan.pc("a")))
            states: set[MemberState] = set()
            loop = asyncio.get_running_loop()
            end = loop.time() + 6.0
            while loop.time() < end:
                for pc, other in ((a, b), (b, a)):
                    member = pc.view.member(other.node)
                    if member is not None:
                        states.add(member.state)
                await asyncio.sleep(0.01)
            assert states == {MemberState.ALIVE}
            assert lan.agreed()
            assert len(a.mesh._links) == len(b.mesh._links) == 1

    run_virtual(main())


def test_messages_are_neither_lost_nor_reordered_while_links_are_unified() -> None:
    async def main() -> None:
        async with fleet() as lan:
            lan.network.direction(NodeId("a"), NodeId("b")).delay_s = 0.04
            lan.network.direction(NodeId("b"), NodeId("a")).delay_s = 0.01
            a = lan.start("a", "b", hints=found(lan.pc("b")))
            b = lan.start("b", "a", hints=found(lan.pc("a")))
            got: dict[str, list[str]] = {"a": [], "b": []}
            for pc in (a, b):
                pc.mesh.route(
                    FleetReport, lambda _, told, __, pc=pc: got[pc.node].append(told.document)
                )
            await lan.until(lambda: len(a.view.members) == len(b.view.members) == 2, 2.0)
            for number in range(300):
                await a.mesh.send(b.node, FleetReport(str(number)))
                await b.mesh.send(a.node, FleetReport(str(number)))
                await asyncio.sleep(0.001)
            await asyncio.sleep(1.0)
            assert got["a"] == got["b"] == [str(number) for number in range(300)]

    run_virtual(main())


def test_a_killed_leader_is_replaced() -> None:
    async def main() -> None:
        async with fleet() as lan:
            await three(lan)
            old = lan.pc("a").view
            await lan.kill(str(old.leader))
            took_s = await lan.until(
                lambda: lan.agreed() and lan.running()[0].view.leader != old.leader, 5.0
            )
            assert took_s < 2.5
            survivor = lan.running()[0].view
            assert survivor.epoch > old.epoch
            assert survivor.member(old.leader or NodeId("")).state is MemberState.DEAD  # type: ignore[union-attr]

    run_virtual(main())


def test_a_silent_leader_gives_up_before_its_leases_end() -> None:
    async def main() -> None:
        async with fleet() as lan:
            await three(lan)
            old = lan.pc("a").view
            leader = lan.pc(str(old.leader))
            others = [pc for pc in lan.running() if pc is not leader]
            lan.network.partition([leader.node], [pc.node for pc in others])
            overlap = False

            def moved_on() -> bool:
                nonlocal overlap
                still = leader.view.leads and leader.view.epoch == old.epoch
                overlap |= still and any(pc.view.leader != leader.node for pc in others)
                return all(pc.view.leader in {one.node for one in others} for pc in others)

            await lan.until(moved_on, 8.0)
            assert not overlap
            await lan.until(lambda: leader.view.leads and leader.view.epoch != old.epoch, 8.0)
            lan.network.partition([pc.node for pc in lan.running()])
            await lan.until(lan.agreed, 10.0)

    run_virtual(main())


@pytest.mark.parametrize("round_number", range(5))
def test_a_restarted_leader_keeps_the_newest_epoch(round_number: int) -> None:
    """J08."""

    async def main() -> None:
        async with fleet() as lan:
            await three(lan)
            newest = NO_EPOCH
            for step in range(4):
                leader = lan.running()[0].view.leader
                await lan.kill(str(leader))
                await asyncio.sleep(0.13 * (round_number + step))
                lan.start(str(leader))
                await lan.until(lan.agreed, 10.0)
                epoch = lan.running()[0].view.epoch
                assert epoch > newest
                newest = epoch

    run_virtual(main())


def test_five_restarts_in_ten_seconds_are_one_member() -> None:
    """J12."""

    async def main() -> None:
        async with fleet() as lan:
            await three(lan)
            for step in range(5):
                await lan.kill("b")
                await asyncio.sleep(0.3 * step)
                lan.start("b", "a")
                await asyncio.sleep(0.5)
                for pc in lan.running():
                    nodes = [one.node for one in pc.view.members]
                    assert len(nodes) == len(set(nodes)) <= 3
            await lan.until(lan.agreed, 10.0)

    run_virtual(main())


def test_a_calm_fleet_does_not_elect_again() -> None:
    """J09: elections in the first minute, although the first election messages are lost."""

    async def main() -> None:
        async with fleet() as lan:
            pcs = [lan.start("a"), lan.start("b", "a")]
            await lan.until(lambda: len(pcs[0].view.members) == 2, 3.0)
            lan.network.direction(NodeId("a"), NodeId("b")).drop = 3
            epochs: set[Epoch] = set()
            for _ in range(600):
                await asyncio.sleep(0.1)
                epochs |= {pc.view.epoch for pc in pcs if pc.view.leader}
            assert lan.agreed()
            assert len(epochs) <= 2

    run_virtual(main())


def test_goodbye_removes_at_once() -> None:
    async def main() -> None:
        async with fleet() as lan:
            await three(lan)
            leader = str(lan.pc("a").view.leader)
            await lan.pc(leader).mesh.leave("shutdown")
            rest = [pc for pc in lan.running() if pc.node != leader]
            await lan.until(lambda: all(len(pc.view.members) == 2 for pc in rest), 0.5)
            await lan.kill(leader)
            await lan.until(lan.agreed, 2.0)

    run_virtual(main())


def test_one_way_cut_is_seen_by_both() -> None:
    async def main() -> None:
        async with fleet() as lan:
            a, b = lan.start("a"), lan.start("b", "a")
            await lan.until(lan.agreed, 4.0)
            lan.network.cut(a.node, b.node)

            def both_doubt() -> bool:
                members = (a.view.member(b.node), b.view.member(a.node))
                return all(one is None or one.state is not MemberState.ALIVE for one in members)

            await lan.until(both_doubt, 6.5)
            lan.network.heal(a.node, b.node)
            await lan.until(lan.agreed, 10.0)

    run_virtual(main())


def test_a_pc_that_slept_starts_anew() -> None:
    """N11: the wall clock went on, the monotonic clock did not."""

    async def main() -> None:
        async with fleet() as lan:
            await three(lan)
            leader = lan.pc(str(lan.pc("a").view.leader))
            epoch, incarnation = leader.view.epoch, leader.incarnation
            leader.wall_offset += 1800.0
            assert not leader.mesh.accepts(epoch, leader.node)
            assert leader.view.leader is None
            assert leader.incarnation == incarnation + 1
            await lan.until(lan.agreed, 10.0)
            assert lan.pc("a").view.epoch > epoch

    run_virtual(main())


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
            assert "1 to 1" in refusal.cause
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


def test_sending_to_a_pc_that_is_not_linked_raises() -> None:
    async def main() -> None:
        async with fleet() as lan:
            pc = lan.start("a")
            with pytest.raises(PeerLost):
                await pc.mesh.send(NodeId("z"), FleetReport("{}"))

    run_virtual(main())


def test_watch_gives_changes_once_and_not_free_memory() -> None:
    async def main() -> None:
        async with fleet() as lan:
            a = lan.start("a")
            seen: list[tuple[int, NodeId | None]] = []

            async def watch() -> None:
                async for view in a.mesh.watch():
                    seen.append((len(view.members), view.leader))

            watching = asyncio.create_task(watch())
            lan.start("b", "a")
            await lan.until(lan.agreed, 4.0)
            await asyncio.sleep(0.1)
            count = len(seen)
            assert seen[0] == (1, None)
            assert seen[-1] == (2, a.view.leader)
            await asyncio.sleep(30.0)
            assert len(seen) == count
            watching.cancel()
            await asyncio.wait([watching])

    run_virtual(main())


def test_only_the_holder_of_the_lease_is_accepted() -> None:
    async def main() -> None:
        async with fleet() as lan:
            await three(lan)
            view = lan.pc("a").view
            for pc in lan.running():
                assert pc.mesh.accepts(view.epoch, view.leader or NodeId(""))
                assert not pc.mesh.accepts(view.epoch, NodeId("z"))
                older = replace(view.epoch, counter=view.epoch.counter - 1)
                assert not pc.mesh.accepts(older, view.leader or NodeId(""))
                assert not pc.mesh.accepts(NO_EPOCH, NodeId(""))

    run_virtual(main())


def test_who_holds_the_model_leads() -> None:
    async def main() -> None:
        async with fleet() as lan:
            lan.pc("c").holds_model = True
            await three(lan)
            assert lan.pc("a").view.leader == "c"

    run_virtual(main())


def test_a_newcomer_with_the_model_does_not_displace_a_leader_that_has_it() -> None:
    async def main() -> None:
        async with fleet() as lan:
            for name in "abc":
                lan.pc(name).holds_model = True
            lan.start("b")
            lan.start("c", "b")
            await lan.until(lan.agreed, 4.0)
            before = lan.pc("b").view
            lan.start("a", "b", "c")
            await lan.until(lan.agreed, 6.0)
            after = lan.pc("b").view
            assert (after.leader, after.epoch) == (before.leader, before.epoch)

    run_virtual(main())


def test_a_leader_without_the_model_gives_way_to_a_newcomer_that_has_it() -> None:
    """Started in the wrong order a fleet must serve all the same."""

    async def main() -> None:
        async with fleet() as lan:
            lan.start("a")
            lan.start("b", "a")
            await lan.until(lan.agreed, 4.0)
            lan.pc("c").holds_model = True
            lan.start("c", "a", "b")
            await lan.until(lambda: lan.agreed() and lan.pc("a").view.leader == "c", 6.0)

    run_virtual(main())


def test_being_alone_is_explained(caplog: pytest.LogCaptureFixture) -> None:
    """J01."""

    async def main() -> None:
        async with fleet() as lan:
            lan.pc("a")
            lan.start("a", "b")
            assert str(lan.pc("b").address) == "10.0.0.2:7000"
            await asyncio.sleep(29.0)

    run_virtual(main())
    assert any("10.0.0.2:7000" in record.getMessage() for record in caplog.records)


def test_an_office_of_scaled_times_works_too() -> None:
    async def main() -> None:
        async with fleet(MeshTiming(heartbeat_s=0.5, suspect_s=1.0, dead_s=2.0)) as lan:
            await three(lan)

    run_virtual(main())


async def three(lan: Fleet) -> list[Pc]:
    """Three PCs that have agreed."""
    pcs = [lan.start("a", "b"), lan.start("b", "c"), lan.start("c", "a")]
    await lan.until(lan.agreed, 6.0)
    return pcs


def test_known_peers_alone_bring_a_fleet_together_again() -> None:
    """After a power cut of the building, without mDNS: one file that names the other is enough."""

    async def main() -> None:
        async with fleet() as lan:
            lan.start("a")
            lan.start("b", "a")
            await lan.until(lan.agreed, 5.0)
            await asyncio.sleep(6.0)
            for name in ("a", "b"):
                await lan.kill(name)
            lan.pc("a").peers.known.clear()
            for name in ("a", "b"):
                lan.start(name)
            await lan.until(lan.agreed, 6.0)

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


def stranger() -> Hello:
    """The greeting of a PC that a test plays by hand."""
    told = Introduction("x", 1, 5, NO_EPOCH, NO_EPOCH, (), (), CAPACITY, holds_model=False)
    return Hello(1, 1, "1.0", CAPACITY.openvino, codec.encode(told))


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


def test_a_full_disk_keeps_a_pc_from_leading_until_there_is_room() -> None:
    async def main() -> None:
        async with fleet() as lan:
            epochs = FullDisk()
            lan.pc("a").epochs = epochs
            a = lan.start("a")
            await asyncio.sleep(10.0)
            assert a.view.leader is None
            epochs.full = False
            await lan.until(lambda: a.view.leads, 3.0)

    run_virtual(main())


class FullDisk(MemoryEpochs):
    """Nothing can be saved while it is full."""

    def __init__(self) -> None:
        super().__init__()
        self.full = True

    def save(self, epoch: Epoch) -> None:
        if self.full:
            raise DiskFull("There is no room.")
        super().save(epoch)


def test_leaving_takes_no_new_links_and_ends_all() -> None:
    async def main() -> None:
        async with fleet() as lan:
            a, b = lan.start("a"), lan.start("b", "a")
            await lan.until(lan.agreed, 4.0)
            await a.mesh.leave("shutdown")
            await lan.until(lambda: b.view.member(a.node) is None, 0.5)
            await asyncio.sleep(20.0)
            assert b.view.member(a.node) is None
            assert b.view.leads

    run_virtual(main())
