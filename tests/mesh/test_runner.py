"""Meshes of several PCs: finding each other, agreeing on a leader, leaving."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from meshinfer.core.fleet import MemberState
from meshinfer.core.ids import NO_EPOCH, Epoch, NodeId
from meshinfer.mesh.timing import MeshTiming
from tests.mesh.harness import fleet, found, three
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
            assert a.view.leader is None

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
