"""Meshes of several PCs: kills, restarts, cuts, sleep, a busy loop, a full disk."""

from __future__ import annotations

import asyncio

import pytest

from meshinfer.core.fleet import MemberState
from meshinfer.core.ids import NO_EPOCH, Epoch, NodeId
from meshinfer.errors import DiskFull
from tests.mesh.harness import MemoryEpochs, fleet, three
from tests.mesh.virtual_time import VirtualLoop, run_virtual


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


@pytest.mark.parametrize("seconds", [0.6, 2.6])
def test_a_busy_loop_accuses_nobody(seconds: float) -> None:
    """N08: who is late himself cannot tell who is silent."""

    async def main() -> None:
        async with fleet() as lan:
            pcs = await three(lan)
            before = pcs[0].view.epoch
            loop = asyncio.get_running_loop()
            assert isinstance(loop, VirtualLoop)
            seen: set[MemberState] = set()
            for step in range(400):
                if step in (100, 250):
                    loop.hang(seconds)
                await asyncio.sleep(0.05)
                seen |= {member.state for pc in pcs for member in pc.view.members}
            assert seen == {MemberState.ALIVE}
            assert {pc.view.epoch for pc in pcs} == {before}

    run_virtual(main())


def test_all_slept_and_find_each_other_again() -> None:
    """N11: both clocks went on while nothing ran (SIGSTOP, or a PC that hibernated)."""

    async def main() -> None:
        async with fleet() as lan:
            pcs = await three(lan)
            before = pcs[0].view
            loop = asyncio.get_running_loop()
            assert isinstance(loop, VirtualLoop)
            loop.hang(1800.0)
            for pc in pcs:
                assert not pc.mesh.accepts(before.epoch, before.leader or pc.node)
            await lan.until(lan.agreed, 10.0)
            assert pcs[0].view.epoch > before.epoch

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
