"""Late messages: when they come, in which order, how many may wait, and which links are slow."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshinfer.core.fleet import Address
from meshinfer.core.ids import NO_EPOCH, NodeId, PlanId
from meshinfer.errors import PeerLost
from meshinfer.link import delayed
from meshinfer.link.base import MESH, RING, Link
from meshinfer.link.clock import ManualClock
from meshinfer.link.delayed import DelayedLink, HopDelay
from meshinfer.link.memory import MemoryNetwork, memory_pair
from meshinfer.wire.membership import Goodbye
from meshinfer.wire.ring import StepFrame

DELAY_S = 0.5
PATIENCE_S = 10.0


async def settle() -> None:
    """Let every task go as far as it can without time passing."""
    for _ in range(20):
        await asyncio.sleep(0)


async def arrivals(gaps_s: Sequence[float], at_once: int = 0) -> list[tuple[str, float]]:
    """(text, seconds after it was sent) of messages sent so far apart, as they come out."""
    clock = ManualClock()
    near, far = memory_pair(MESH)
    late = DelayedLink(far, DELAY_S, clock, at_once)
    sent: dict[str, float] = {}
    came: list[tuple[str, float]] = []

    async def read() -> None:
        while len(came) < len(gaps_s):
            message = (await late.receive()).message
            came.append((message.reason, clock.now() - sent[message.reason]))

    reading = asyncio.create_task(read())
    await settle()
    for number, gap in enumerate(gaps_s):
        await advance(clock, gap)
        sent[str(number)] = clock.now()
        await near.send(Goodbye(str(number)))
        await settle()
    await advance(clock, DELAY_S)
    await reading
    await late.close()
    await near.close()
    return came


async def advance(clock: ManualClock, seconds: float) -> None:
    """In small steps, so that who wakes sees the moment (sixteenths are exact in a float)."""
    for _ in range(round(seconds * 16)):
        clock.advance(1 / 16)
        await settle()


@given(st.lists(st.integers(0, 12), min_size=1, max_size=6))
def test_each_message_is_as_late_as_every_other_and_in_order(sixteenths: list[int]) -> None:
    """Throughput is not limited: a message never waits for the delay of the one before."""
    came = asyncio.run(arrivals([one / 16 for one in sixteenths]))
    assert came == [(str(number), DELAY_S) for number in range(len(sixteenths))]


async def test_greetings_pass_at_once() -> None:
    assert await arrivals([0.0, 0.125], at_once=1) == [("0", 0.0), ("1", DELAY_S)]


async def test_a_lost_link_still_delivers_what_came_before() -> None:
    clock = ManualClock()
    near, far = memory_pair(MESH)
    late = DelayedLink(far, DELAY_S, clock)
    first = asyncio.create_task(late.receive())
    await near.send(Goodbye("last words"))
    await near.close("gone")
    await settle()
    clock.advance(DELAY_S)
    assert (await first).message == Goodbye("last words")
    for _ in range(2):
        with pytest.raises(PeerLost, match="gone"):
            await late.receive()
    await late.close()


async def test_what_waits_is_bounded() -> None:
    """A reader that does not read stops the sender, whatever the delay."""
    near, far = memory_pair(RING)
    late = DelayedLink(far, DELAY_S, ManualClock())
    reading = asyncio.create_task(late.receive())
    sent = 0

    async def flood() -> None:
        nonlocal sent
        while True:
            frame = StepFrame(NO_EPOCH, PlanId("p"), 1, 1, 1, 64, (), (), ())
            await near.send(frame, bytes(1 << 20))
            sent += 1
            await asyncio.sleep(0)

    flooding = asyncio.create_task(flood())
    for _ in range(300):
        await asyncio.sleep(0)
    assert delayed.MOST_BYTES >> 20 <= sent <= (delayed.MOST_BYTES >> 20) + 3
    await late.close()  # also while its task waits for room
    for task in (reading, flooding):
        with pytest.raises(PeerLost):
            await task


ME, OTHER = NodeId("me"), NodeId("other")


@pytest.mark.parametrize(
    ("delay_s", "peer", "channel", "is_slow"),
    [
        (0.1, OTHER, RING, True),
        (0.0, OTHER, RING, False),
        (0.1, ME, RING, False),  # a stage host and its agent: no network between them
        (0.1, OTHER, MESH, False),
    ],
)
async def test_only_ring_links_with_another_pc_are_slow(
    delay_s: float, peer: NodeId, channel: str, is_slow: bool
) -> None:
    network = MemoryNetwork()
    hop = HopDelay(ME, delay_s)
    done = asyncio.Event()

    async def hold(link: Link) -> None:
        await done.wait()

    there = Address("there", 1)
    network.listen(there, peer, {channel: hold})
    dialer = network.dialer(ME, Address("here", 1))
    link = await hop.dialer(dialer).dial(there, channel, peer)
    assert isinstance(link, DelayedLink) is is_slow
    done.set()
    await link.close()
    await network.close()


@pytest.mark.parametrize(("dialled_by", "is_slow"), [(OTHER, True), (ME, False)])
async def test_an_incoming_link_is_slow_and_closed_behind_its_handler(
    dialled_by: NodeId, is_slow: bool
) -> None:
    network = MemoryNetwork()
    seen: list[bool] = []

    async def look(link: Link) -> None:
        seen.append(isinstance(link, DelayedLink))

    network.listen(Address("here", 1), ME, {RING: HopDelay(ME, 0.1).handler(look)})
    link = await network.dialer(dialled_by, Address("there", 1)).dial(Address("here", 1), RING, ME)
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(PeerLost, match="its handler is done"):
            await link.receive()
    assert seen == [is_slow]
    await network.close()
