"""The in-memory network's own controls; what it shares with sockets is in tests/contracts."""

from __future__ import annotations

import asyncio

import pytest

from meshinfer.core.fleet import Address
from meshinfer.core.ids import NodeId
from meshinfer.errors import PeerLost, ProtocolViolation, TrustRefused
from meshinfer.link.base import MESH, RING, Link
from meshinfer.link.clock import ManualClock
from meshinfer.link.memory import MemoryNetwork, memory_pair
from meshinfer.wire.membership import Goodbye

A, B, C = NodeId("a" * 52), NodeId("b" * 52), NodeId("c" * 52)
AT_A, AT_B = Address("10.0.0.1", 7946), Address("10.0.0.2", 7946)


async def echo(link: Link) -> None:
    while True:
        received = await link.receive()
        await link.send(received.message)


async def settle() -> None:
    """Let everything run that can run now."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_delay_holds_until_the_clock_has_moved() -> None:
    clock = ManualClock()
    left, right = memory_pair(clock=clock)
    left.outgoing.delay_s = 0.5
    await left.send(Goodbye("late"))
    waiting = asyncio.ensure_future(right.receive())
    clock.advance(0.499)
    await settle()
    assert not waiting.done()
    clock.advance(0.001)
    assert (await waiting).message == Goodbye("late")


async def test_a_shorter_delay_does_not_overtake() -> None:
    clock = ManualClock()
    left, right = memory_pair(clock=clock)
    left.outgoing.delay_s = 0.5
    await left.send(Goodbye("first"))
    left.outgoing.delay_s = 0.0
    await left.send(Goodbye("second"))
    clock.advance(1.0)
    assert [(await right.receive()).message.reason for _ in range(2)] == ["first", "second"]


async def test_a_cut_is_silent_both_for_messages_and_for_closing() -> None:
    left, right = memory_pair()
    left.outgoing.cut = True
    await left.send(Goodbye("lost"))
    waiting = asyncio.ensure_future(right.receive())
    await left.close()
    await settle()
    assert not waiting.done()
    waiting.cancel()


async def test_a_one_way_cut_leaves_the_other_way() -> None:
    left, right = memory_pair()
    left.outgoing.cut = True
    await right.send(Goodbye("heard"))
    assert (await left.receive()).message == Goodbye("heard")


async def test_the_next_message_can_be_dropped() -> None:
    left, right = memory_pair()
    left.outgoing.drop = 1
    await left.send(Goodbye("dropped"))
    await left.send(Goodbye("kept"))
    assert (await right.receive()).message == Goodbye("kept")


async def test_a_damaged_message_closes_the_link_on_both_sides() -> None:
    left, right = memory_pair()
    left.outgoing.damage = 1
    await left.send(Goodbye("damaged"))
    with pytest.raises(ProtocolViolation, match="wrong checksum"):
        await right.receive()
    with pytest.raises(PeerLost):
        await left.receive()


async def test_dialling_finds_the_listener_and_both_know_who() -> None:
    network = MemoryNetwork()
    seen: list[tuple[NodeId, Address]] = []

    async def note(link: Link) -> None:
        seen.append((link.peer, link.address))
        await echo(link)

    network.listen(AT_B, B, {MESH: note})
    link = await network.dialer(A, AT_A).dial(AT_B, MESH, B)
    await link.send(Goodbye("x"))
    assert (await link.receive()).message == Goodbye("x")
    assert (link.peer, link.address) == (B, AT_B)
    assert seen == [(A, AT_A)]
    await network.close()


async def test_dialling_nobody_another_pc_or_another_channel() -> None:
    network = MemoryNetwork()
    stop = network.listen(AT_B, B, {MESH: echo})
    dialer = network.dialer(A, AT_A)
    with pytest.raises(PeerLost):
        await dialer.dial(AT_A, MESH, None)
    with pytest.raises(PeerLost):
        await dialer.dial(AT_B, RING, None)
    with pytest.raises(TrustRefused, match="is bbbbbbbb, not cccccccc"):
        await dialer.dial(AT_B, MESH, C)
    stop()
    with pytest.raises(PeerLost):
        await dialer.dial(AT_B, MESH, B)
    await network.close()


async def test_dialling_over_a_cut_takes_the_connect_timeout() -> None:
    clock = ManualClock()
    network = MemoryNetwork(clock)
    network.listen(AT_B, B, {MESH: echo})
    network.cut(B, A)
    dialling = asyncio.ensure_future(network.dialer(A, AT_A).dial(AT_B, MESH, B))
    await settle()
    assert not dialling.done()
    clock.advance(3.0)
    with pytest.raises(PeerLost, match="in 3 s"):
        await dialling
    network.heal(B, A)
    await (await network.dialer(A, AT_A).dial(AT_B, MESH, B)).close()
    await network.close()


async def test_a_partition_and_its_end() -> None:
    network = MemoryNetwork()
    network.listen(AT_B, B, {MESH: echo})
    link = await network.dialer(A, AT_A).dial(AT_B, MESH, B)
    network.partition([A, C], [B])
    assert network.direction(A, B).cut
    assert network.direction(B, C).cut
    assert not network.direction(A, C).cut
    await link.send(Goodbye("lost"))
    network.partition([A, B, C])
    await link.send(Goodbye("heard"))
    assert (await link.receive()).message == Goodbye("heard")
    await network.close()


async def test_a_killed_pc_is_noticed_at_once_and_gone() -> None:
    network = MemoryNetwork()
    network.listen(AT_B, B, {MESH: echo})
    dialer = network.dialer(A, AT_A)
    link = await dialer.dial(AT_B, MESH, B)
    await network.kill(B)
    with pytest.raises(PeerLost, match="process ended"):
        await link.receive()
    with pytest.raises(PeerLost):
        await dialer.dial(AT_B, MESH, B)
    await network.close()


async def test_a_bug_in_a_handler_surfaces_when_the_network_is_closed() -> None:
    async def broken(link: Link) -> None:
        raise RuntimeError("bug")

    network = MemoryNetwork()
    network.listen(AT_B, B, {MESH: broken})
    link = await network.dialer(A, AT_A).dial(AT_B, MESH, B)
    with pytest.raises(PeerLost):
        await link.receive()
    with pytest.raises(ExceptionGroup, match="handlers failed"):
        await network.close()
