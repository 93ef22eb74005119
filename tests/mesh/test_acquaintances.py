"""Hints, memory and what PCs tell each other about PCs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from random import Random

import pytest

from meshinfer.core.fleet import Address, Refusal
from meshinfer.core.ids import NO_EPOCH, FleetId, NodeId
from meshinfer.mesh.acquaintances import Acquaintances
from meshinfer.mesh.fleet_state import FleetState
from meshinfer.mesh.hints import Hint, OtherFleet, PeerFound, PeerLost
from meshinfer.mesh.instructions import Send
from meshinfer.mesh.known_peers import MOST_KNOWN
from meshinfer.mesh.timing import MeshTiming
from meshinfer.mesh.world import Me, World
from meshinfer.wire.hello import Introduction
from meshinfer.wire.membership import KnownPeer, Peers
from tests.mesh.harness import CAPACITY, MemoryEpochs, MemoryPeers
from tests.mesh.virtual_time import run_virtual

ME, A, B, C = (NodeId(name) for name in ("me", "a", "b", "c"))
FLEET = FleetId("f")
TIMING = MeshTiming()
T0 = 1000.0


def at(number: int) -> tuple[Address, ...]:
    return (Address(f"10.0.0.{number}", 7000),)


class Shell:
    """Acquaintances of ME, and the state that they look at."""

    def __init__(self, *seeds: Address, hints: AsyncIterator[Hint] | None = None) -> None:
        self.peers = MemoryPeers()
        self.now = T0
        self.me = Me(ME, "me", 1, at(1), (), "1.0")
        self.world = World(
            clock=lambda: self.now,
            wall_clock=lambda: self.now,
            random=Random(0),
            epochs=MemoryEpochs(),
            known_peers=self.peers,
            capacity=lambda: CAPACITY,
            holds_model=lambda: False,
            next_incarnation=lambda: 2,
        )
        self.state = FleetState(self.me, NO_EPOCH, CAPACITY, TIMING, Random(0), T0)
        self.seeds = seeds
        self.hints = hints
        self.own = self.again()

    def again(self) -> Acquaintances:
        return Acquaintances(self.me, self.world, TIMING, self.seeds, self.hints)

    def meet(self, node: NodeId, number: int) -> list[Send]:
        told = Introduction(
            node, 1, number, NO_EPOCH, NO_EPOCH, at(number), (), CAPACITY, holds_model=False
        )
        self.state.link_up(number, node, node, told, self.now)
        steps = self.own.met(node, told, self.state, self.now)
        assert all(isinstance(step, Send) for step in steps)
        return [step for step in steps if isinstance(step, Send)]

    def lose(self, number: int) -> None:
        self.state.link_down(number, self.now)

    def dialled(self) -> set[object]:
        return {target.key for target in self.own.queue.due(self.state.linked(), self.now)}


def test_a_newcomer_hears_of_all_and_all_of_the_newcomer() -> None:
    """J02: knowing one PC of the fleet is enough."""
    shell = Shell()
    assert shell.meet(A, 2) == []
    shell.meet(B, 3)
    to_all = shell.meet(C, 4)
    assert {step.node for step in to_all} == {A, B, C}
    by_node = {step.node: step.message for step in to_all}
    assert by_node[A] == by_node[B] == Peers((KnownPeer(C, at(4)),))
    told = by_node[C]
    assert isinstance(told, Peers)
    assert {KnownPeer(A, at(2)), KnownPeer(B, at(3))} <= set(told.known)


def test_what_others_tell_is_dialled() -> None:
    shell = Shell()
    shell.own.heard_of(Peers((KnownPeer(C, at(4)), KnownPeer(ME, at(1)))), T0)
    assert shell.dialled() == {C}


def test_all_are_told_again_now_and_then() -> None:
    shell = Shell()
    shell.meet(A, 2)
    shell.meet(B, 3)
    assert shell.own.tick(shell.state, T0 + TIMING.exchange_s - 1.0) == []
    again = shell.own.tick(shell.state, T0 + TIMING.exchange_s)
    assert {step.node for step in again if isinstance(step, Send)} == {A, B}
    assert shell.own.tick(shell.state, T0 + TIMING.exchange_s + 1.0) == []


def test_two_pcs_have_nothing_to_tell_each_other() -> None:
    shell = Shell()
    shell.meet(A, 2)
    assert shell.own.tick(shell.state, T0 + 2 * TIMING.exchange_s) == []


def test_who_was_met_is_dialled_after_a_restart_too() -> None:
    async def main() -> None:
        shell = Shell()
        remembering = asyncio.create_task(shell.own.remember())
        shell.meet(A, 2)
        await asyncio.sleep(TIMING.remember_s + 0.1)
        assert shell.peers.known == {A: at(2)}
        shell.peers.known = {}  # nothing changed: the disk is left alone
        await asyncio.sleep(10 * TIMING.remember_s)
        assert shell.peers.known == {}
        shell.peers.known = {A: at(2)}
        remembering.cancel()
        await asyncio.wait([remembering])
        shell.lose(2)
        shell.own = shell.again()
        assert shell.dialled() == {A}

    run_virtual(main())


def test_the_newest_acquaintances_are_remembered() -> None:
    async def main() -> None:
        shell = Shell()
        remembering = asyncio.create_task(shell.own.remember())
        for number in range(MOST_KNOWN + 10):
            shell.meet(NodeId(f"n{number}"), number)
            shell.lose(number)
        shell.meet(NodeId("n10"), 10)
        await asyncio.sleep(TIMING.remember_s + 0.1)
        assert len(shell.peers.known) == MOST_KNOWN
        assert list(shell.peers.known)[-1] == "n10"
        assert "n9" not in shell.peers.known
        remembering.cancel()
        await asyncio.wait([remembering])

    run_virtual(main())


def test_hints_are_dialled_and_other_fleets_are_not(caplog: pytest.LogCaptureFixture) -> None:
    async def told() -> AsyncIterator[Hint]:
        yield OtherFleet(FleetId("g"))
        yield PeerFound(A, FLEET, at(2))
        yield PeerFound(B, FLEET, at(3))
        yield PeerLost(B)  # says nothing about whether it lives

    async def main() -> None:
        shell = Shell(hints=told())
        await shell.own.listen()
        assert shell.dialled() == {A, B}
        shell.own.tick(shell.state, T0 + TIMING.alone_s)

    with caplog.at_level(logging.WARNING):
        run_virtual(main())
    assert any("1 other fleet" in record.getMessage() for record in caplog.records)


def test_solitude_is_explained_once_each_time(caplog: pytest.LogCaptureFixture) -> None:
    """J01: within 30 s."""
    shell = Shell()

    def warnings() -> int:
        caplog.clear()
        for second in range(30):
            shell.own.tick(shell.state, shell.now + second)
        shell.now += 30.0
        return len(caplog.records)

    assert warnings() >= 1
    assert warnings() == 0
    shell.meet(A, 2)
    assert warnings() == 0
    shell.lose(2)
    assert warnings() >= 1
    assert "me is alone" in caplog.records[0].getMessage()


def test_a_refusal_again_and_again_is_one_with_a_count() -> None:
    shell = Shell()
    for port in range(3):
        shell.own.note_refusal(Refusal(f"10.0.0.9:{port}", "another version", T0 + port))
    shell.own.note_refusal(Refusal("10.0.0.9:0", "not of this fleet", T0))
    counts = {one.reason: (one.count, one.address) for one in shell.own.refusals}
    assert counts["another version"] == (3, "10.0.0.9:2")
    assert counts["not of this fleet"] == (1, "10.0.0.9:0")


def test_refusals_are_bounded_and_the_oldest_goes() -> None:
    shell = Shell()
    for number in range(100):
        shell.own.note_refusal(Refusal(f"10.0.1.{number}:1", "no", T0))
    assert len(shell.own.refusals) == 32
    assert shell.own.refusals[-1].address == "10.0.1.99:1"


def test_a_seed_is_dialled_from_the_start() -> None:
    seed = Address("10.0.0.7", 7000)
    assert Shell(seed).dialled() == {seed}
