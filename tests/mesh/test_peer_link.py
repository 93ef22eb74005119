"""How one link lives and ends."""

from __future__ import annotations

import asyncio

import pytest

from meshinfer.errors import PeerLost, ProtocolViolation
from meshinfer.link.base import Received
from meshinfer.link.memory import MemoryLink, memory_pair
from meshinfer.mesh.peer_link import PeerLink
from meshinfer.wire.forward import FleetReport
from meshinfer.wire.membership import Goodbye
from tests.mesh.virtual_time import run_virtual


class Conversation:
    """A running PeerLink, the far end, and what arrived."""

    def __init__(self, close_s: float = 1.0) -> None:
        near, self.far = memory_pair()
        self.near: MemoryLink = near
        self.link = PeerLink(1, near, close_s)
        self.heard: list[object] = []
        self.task = asyncio.create_task(self.link.run(self._take))

    async def _take(self, _: PeerLink, received: Received) -> None:
        self.heard.append(received.message)


def test_messages_go_both_ways() -> None:
    async def main() -> None:
        talk = Conversation()
        await talk.far.send(FleetReport("in"))
        await talk.link.outbox.put(FleetReport("out"), b"")
        assert (await talk.far.receive()).message == FleetReport("out")
        await asyncio.sleep(0.1)
        assert talk.heard == [FleetReport("in")]
        talk.link.finish("done")
        await talk.task
        assert talk.far.closed

    run_virtual(main())


def test_finishing_writes_what_is_queued_and_a_last_word() -> None:
    async def main() -> None:
        talk = Conversation()
        await talk.link.outbox.put(FleetReport("queued"), b"")
        talk.link.finish("shutdown", Goodbye("bye"))
        await talk.task
        assert (await talk.far.receive()).message == FleetReport("queued")
        assert (await talk.far.receive()).message == Goodbye("bye")
        with pytest.raises(PeerLost, match="shutdown"):
            await talk.far.receive()

    run_virtual(main())


def test_a_peer_that_does_not_read_is_not_waited_for_for_ever() -> None:
    async def main() -> None:
        talk = Conversation(close_s=1.0)
        for _ in range(20):  # more than lies unread between two PCs
            await talk.link.outbox.put(FleetReport("x" * 200_000), b"")
        await asyncio.sleep(0.1)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        talk.link.finish("enough")
        await talk.task
        assert loop.time() - begun == pytest.approx(1.0, abs=0.1)

    run_virtual(main())


def test_the_other_side_closes() -> None:
    async def main() -> None:
        talk = Conversation()
        await talk.far.close("tired")
        with pytest.raises(PeerLost, match="tired"):
            await talk.task
        with pytest.raises(PeerLost):
            await talk.link.outbox.put(FleetReport("late"), b"")

    run_virtual(main())


def test_damage_is_a_violation_and_closes() -> None:
    async def main() -> None:
        talk = Conversation()
        talk.far.outgoing.damage = 1
        await talk.far.send(FleetReport("{}"))
        with pytest.raises(ProtocolViolation):
            await talk.task
        assert talk.near.closed

    run_virtual(main())


def test_a_message_over_its_limit_is_dropped_here_and_the_link_lives() -> None:
    async def main() -> None:
        talk = Conversation()
        await talk.link.outbox.put(FleetReport("x" * 10_000_000), b"")
        await talk.link.outbox.put(FleetReport("small"), b"")
        assert (await talk.far.receive()).message == FleetReport("small")
        talk.link.finish("done")
        await talk.task

    run_virtual(main())


def test_cancelling_closes_and_leaves_no_task() -> None:
    async def main() -> None:
        talk = Conversation()
        await asyncio.sleep(0)
        talk.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await talk.task
        assert talk.near.closed
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtual(main())
