"""Mail goes on the link in use, and comes in order when two links become one."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from meshinfer.core.fleet import Capacity
from meshinfer.core.ids import NO_EPOCH, NodeId
from meshinfer.errors import PeerLost
from meshinfer.link.memory import memory_pair
from meshinfer.mesh.fleet_state import FleetState
from meshinfer.mesh.mail import Mail
from meshinfer.mesh.notice import Notice
from meshinfer.mesh.peer_link import PeerLink
from meshinfer.mesh.timing import MeshTiming
from meshinfer.mesh.world import Me
from meshinfer.wire.forward import FleetReport
from meshinfer.wire.hello import Introduction
from meshinfer.wire.membership import Heartbeat, Superseded
from tests.mesh.virtual_time import run_virtual

ME, PEER = NodeId("m"), NodeId("p")
CAPACITY = Capacity(8, 4, 2, (), "2026.4.1")


class Post:
    """A PC with two links to one other: 1 dialled by the greater id, 2 by the smaller."""

    def __init__(self) -> None:
        me = Me(ME, "m", 1, (), (), "1")
        self.state = FleetState(me, NO_EPOCH, CAPACITY, MeshTiming(), Random(0), 0.0)
        self.links = {number: PeerLink(number, memory_pair()[0], 1.0) for number in (1, 2)}
        self.order = Notice()
        self.mail = Mail(self.links, self.state, self.order)
        for number, dialler in ((1, PEER), (2, ME)):
            told = Introduction("p", 1, number, NO_EPOCH, NO_EPOCH, (), (), CAPACITY, False)
            self.state.link_up(number, PEER, dialler, told, 0.0)

    def hear(self, link: int) -> None:
        beat = Heartbeat(1, 0, NO_EPOCH, NO_EPOCH, 0, CAPACITY, False)
        self.state.received(link, beat, 0.1)


async def queued(link: PeerLink) -> object:
    item = await link.outbox.take()
    return item[0] if item else None


def test_it_goes_on_the_old_link_until_the_better_one_is_heard() -> None:
    async def main() -> None:
        post = Post()
        await post.mail.send(PEER, FleetReport("1"), b"")
        post.hear(2)
        await post.mail.send(PEER, FleetReport("2"), b"")
        assert await queued(post.links[1]) == FleetReport("1")
        assert await queued(post.links[2]) == FleetReport("2")

    run_virtual(main())


def test_what_waits_for_room_moves_to_the_better_link_when_the_old_is_sealed() -> None:
    async def main() -> None:
        post = Post()
        old = post.links[1].outbox
        for number in range(64):
            await post.mail.send(PEER, FleetReport(str(number)), b"")
        waiting = asyncio.create_task(post.mail.send(PEER, FleetReport("late"), b""))
        await asyncio.sleep(0)
        assert not waiting.done()
        post.hear(2)
        old.seal(Superseded())
        await waiting
        assert await queued(post.links[2]) == FleetReport("late")

    run_virtual(main())


def test_a_message_on_the_better_link_waits_until_the_old_one_has_ended() -> None:
    async def main() -> None:
        post = Post()
        post.hear(2)
        turn = asyncio.create_task(post.mail.wait_for_turn(2, 2.0))
        await asyncio.sleep(1.0)
        assert not turn.done()
        post.state.received(1, Superseded(), 0.2)
        post.order.notify()
        await asyncio.sleep(0.01)
        assert turn.done()
        await turn

    run_virtual(main())


def test_an_end_that_never_comes_is_not_waited_for_for_ever() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        await Post().mail.wait_for_turn(2, 2.0)
        assert loop.time() - begun == pytest.approx(2.0)

    run_virtual(main())


def test_without_a_link_it_is_an_error() -> None:
    async def main() -> None:
        post = Post()
        with pytest.raises(PeerLost):
            await post.mail.send(NodeId("z"), FleetReport("1"), b"")

    run_virtual(main())
