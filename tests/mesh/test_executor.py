"""Instructions become messages on links, dials and writes to the disk, in order."""

from __future__ import annotations

import pytest

from meshinfer.core.ids import Epoch, NodeId
from meshinfer.errors import PeerLost
from meshinfer.link.base import MESH
from meshinfer.link.memory import MemoryLink, memory_pair
from meshinfer.mesh.executor import Executor
from meshinfer.mesh.instructions import CloseLink, Instruction, Persist, Post, Redial, Send
from meshinfer.mesh.peer_link import PeerLink
from meshinfer.wire.election import Campaign, Resign
from meshinfer.wire.forward import FleetReport
from meshinfer.wire.membership import Superseded

ME, PEER = NodeId("me"), NodeId("peer")
EPOCH = Epoch(3, ME)


class Shell:
    """Two links with PEER, of which the second is in use, and what the executor asked for."""

    def __init__(self) -> None:
        self.links: dict[int, PeerLink] = {}
        self.far: dict[int, MemoryLink] = {}
        for number in (1, 2):
            near, self.far[number] = memory_pair(MESH, ME, PEER)
            self.links[number] = PeerLink(number, near, close_s=1.0)
        self.asked: list[object] = []
        self._executor = Executor(
            self.links,
            lambda node: 2 if node == PEER else None,
            self.asked.append,
            self.asked.append,
        )

    def do(self, *steps: Instruction) -> None:
        self._executor.do(steps)

    async def written(self, number: int) -> list[object]:
        """What is written on a link of which no more than that is expected."""
        outbox = self.links[number].outbox
        outbox.end()
        messages = []
        while (item := await outbox.take()) is not None:
            messages.append(item[0])
        return messages


async def test_a_message_to_a_pc_takes_the_link_in_use_and_a_post_its_own() -> None:
    shell = Shell()
    shell.do(Send(PEER, Campaign(EPOCH)), Post(1, Resign(EPOCH)), Send(PEER, Resign(EPOCH)))
    assert await shell.written(1) == [Resign(EPOCH)]
    assert await shell.written(2) == [Campaign(EPOCH), Resign(EPOCH)]


async def test_what_has_no_link_is_not_sent() -> None:
    shell = Shell()
    shell.do(Send(NodeId("gone"), Campaign(EPOCH)), Post(9, Campaign(EPOCH)), CloseLink(9, "gone"))
    assert await shell.written(1) == await shell.written(2) == []


async def test_the_disk_and_the_dialler_are_asked_in_order() -> None:
    shell = Shell()
    shell.do(Persist(EPOCH), Redial(PEER))
    assert shell.asked == [EPOCH, PEER]


async def test_superseded_is_the_last_word_on_a_link() -> None:
    """Nothing queued before it is lost, and nothing follows: the other side stops waiting."""
    shell = Shell()
    outbox = shell.links[1].outbox
    assert await outbox.put(FleetReport("{}"), b"")
    shell.do(Post(1, Superseded()), Post(1, Resign(EPOCH)))
    assert not await outbox.put(FleetReport("{}"), b"")
    assert await shell.written(1) == [FleetReport("{}"), Superseded()]


async def test_a_link_is_closed_after_what_is_queued_was_written() -> None:
    shell = Shell()
    shell.do(Post(1, Resign(EPOCH)), CloseLink(1, "enough"))

    async def take(*_: object) -> None:
        raise AssertionError("the other side said nothing")

    await shell.links[1].run(take)
    assert (await shell.far[1].receive()).message == Resign(EPOCH)
    with pytest.raises(PeerLost):
        await shell.far[1].receive()
