"""Real mDNS on the interfaces of this machine. Loopback carries multicast on Linux and Windows, so
these run without a network too; where it does not, they say why they are skipped."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from zeroconf.asyncio import AsyncServiceInfo, AsyncZeroconf

from meshinfer.core.fleet import Address
from meshinfer.core.ids import FleetId, NodeId
from meshinfer.mesh.addresses import InterfaceAddress
from meshinfer.mesh.announcement import SERVICE, instance, text
from meshinfer.mesh.discovery import Discovery, DiscoveryOptions, interface_addresses
from meshinfer.mesh.hints import Hint, OtherFleet, PeerFound, PeerLost

LOOPBACK = "127.0.0.1"
DEADLINE_S = 10.0
# Of this run: another run, or a real fleet, on this machine is another fleet.
OURS, OTHERS = FleetId(secrets.token_hex(10)), FleetId(secrets.token_hex(10))


def node(letter: str) -> NodeId:
    return NodeId(letter * 52)


def multicast_works() -> bool:
    """Whether a datagram to the group of mDNS comes back on loopback (on a port of our own)."""
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        receiver.bind(("", 0))
        group = socket.inet_aton("224.0.0.251") + socket.inet_aton(LOOPBACK)
        receiver.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group)
        receiver.settimeout(1.0)
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(LOOPBACK))
        sender.sendto(b"hello", ("224.0.0.251", receiver.getsockname()[1]))
        return receiver.recv(16) == b"hello"
    except OSError:
        return False
    finally:
        receiver.close()
        sender.close()


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not multicast_works(), reason="no multicast on loopback here"),
]


class Agent:
    """A running Discovery and its hints."""

    def __init__(self, letter: str, fleet: FleetId, port: int, poll_s: float = 5.0) -> None:
        self.node = node(letter)
        self.interfaces = [InterfaceAddress("lo", LOOPBACK)]
        options = DiscoveryOptions(only=(LOOPBACK,), poll_s=poll_s)
        self.discovery = Discovery(self.node, fleet, port, options, lambda: list(self.interfaces))
        self.heard: list[Hint] = []
        self._news = asyncio.Condition()

    async def listen(self) -> None:
        async for hint in self.discovery.hints():
            async with self._news:
                self.heard.append(hint)
                self._news.notify_all()

    async def until(self, *hints: Hint) -> float:
        """Seconds until all of `hints` were heard."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        async with asyncio.timeout(DEADLINE_S), self._news:
            await self._news.wait_for(lambda: all(hint in self.heard for hint in hints))
        return loop.time() - begun


def found(letter: str, port: int) -> PeerFound:
    return PeerFound(node(letter), OURS, (Address(LOOPBACK, port),))


@asynccontextmanager
async def running(*agents: Agent) -> AsyncIterator[None]:
    tasks = [
        asyncio.create_task(work())
        for agent in agents
        for work in (agent.discovery.run, agent.listen)
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in tasks:
        assert task.cancelled() or task.exception() is None


async def test_three_agents_on_one_machine_find_each_other() -> None:
    """They share the host name (J06b) and port 5353."""
    ports = {"a": 1, "b": 2, "c": 3}
    agents = {letter: Agent(letter, OURS, port) for letter, port in ports.items()}
    async with running(*agents.values()):
        for letter, agent in agents.items():
            others = [found(other, port) for other, port in ports.items() if other != letter]
            assert await agent.until(*others) < 1.5
            assert found(letter, ports[letter]) not in agent.heard


async def test_a_late_one_is_found_and_its_clean_end_is_heard() -> None:
    first, late = Agent("a", OURS, 1), Agent("b", OURS, 2)
    async with running(first):
        async with running(late):
            await asyncio.gather(first.until(found("b", 2)), late.until(found("a", 1)))
        await first.until(PeerLost(late.node))


async def test_the_record_of_a_killed_agent_is_replaced_by_its_restart() -> None:
    """J06a: kill -9 says no goodbye, and the old record would live for 75 minutes."""
    watcher, restarted = Agent("a", OURS, 1), Agent("b", OURS, 22)
    async with running(watcher):
        async with announcing("b", OURS, 21):  # its end is not said
            await watcher.until(found("b", 21))
        async with running(restarted):
            await watcher.until(found("b", 22))
        assert PeerLost(node("b")) not in watcher.heard[:1]


async def test_another_fleet_is_counted_and_not_dialled() -> None:
    ours, theirs = Agent("a", OURS, 1), Agent("b", OTHERS, 2)
    async with running(ours, theirs):
        await ours.until(OtherFleet(OTHERS))
        assert ours.discovery.other_fleets == {OTHERS: 1}
    assert not [hint for hint in ours.heard if isinstance(hint, PeerFound)]


async def test_nonsense_on_the_lan_is_ignored() -> None:
    agent = Agent("a", OURS, 1)
    late = Agent("c", OURS, 3)
    async with running(agent), announcing("b", FleetId("nonsense"), 2), running(late):
        await agent.until(found("c", 3))
        await late.until(found("a", 1))
    assert not [hint for hint in agent.heard if hint == found("b", 2)]


async def test_a_new_address_is_announced() -> None:
    """The interfaces are looked at again and again: DHCP, docking, sleep."""
    watcher, moving = Agent("a", OURS, 1), Agent("b", OURS, 2, poll_s=0.1)
    async with running(watcher, moving):
        await watcher.until(found("b", 2))
        moving.interfaces = []
        await watcher.until(PeerLost(moving.node))
        assert moving.discovery.hosts == ()
        watcher.heard.clear()
        moving.interfaces = [InterfaceAddress("lo", LOOPBACK)]
        await watcher.until(found("b", 2))


async def test_an_interface_that_went_away_is_survived() -> None:
    agent, other = Agent("a", OURS, 1, poll_s=0.05), Agent("b", OURS, 2)
    gone = InterfaceAddress("gone0", "203.0.113.7")
    agent.interfaces.append(gone)
    options = DiscoveryOptions(only=(gone.host, LOOPBACK))
    agent.discovery = Discovery(agent.node, OURS, 1, options, lambda: list(agent.interfaces))
    async with running(agent, other):
        await agent.until(found("b", 2))
        assert agent.discovery.hosts == (LOOPBACK,)


def test_the_addresses_of_this_machine_are_known() -> None:
    assert LOOPBACK in {one.host for one in interface_addresses()}


@asynccontextmanager
async def announcing(letter: str, fleet: FleetId, port: int) -> AsyncIterator[None]:
    """An agent that dies without taking its announcement back."""
    zeroconf = AsyncZeroconf(interfaces=[LOOPBACK])
    info = AsyncServiceInfo(
        SERVICE,
        instance(node(letter)),
        addresses=[socket.inet_aton(LOOPBACK)],
        port=port,
        properties=text(node(letter), fleet, port),
        server=f"{node(letter)}.local.",
    )
    announced = await zeroconf.async_register_service(info, cooperating_responders=True)
    await announced
    zeroconf.zeroconf.registry.async_remove(info)
    await zeroconf.async_close()
    yield
