"""A follower's door and the leader's desk, joined by a wire that is a function call."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

import pytest

from meshinfer.core.ids import ModelId, NodeId, RequestId
from meshinfer.core.request import (
    GREEDY,
    Delta,
    Event,
    Finished,
    FinishReason,
    GenerationRequest,
    Started,
)
from meshinfer.errors import ContextTooLong, PeerLost
from meshinfer.node.forward import ForwardDesk, ForwardDoor
from meshinfer.wire.forward import Ask, AskCancel

LEADER, FOLLOWER = NodeId("leader"), NodeId("follower")
REQUEST = GenerationRequest(RequestId("r1"), ModelId("m"), (), "hello", GREEDY, 5)
DONE = Finished(FinishReason.LENGTH, 2, 2, 0.1, 0.05)


class Wire:
    """Delivers to the other side's handlers at once, unless it is cut."""

    def __init__(self) -> None:
        self.door: ForwardDoor
        self.desk: ForwardDesk
        self.cut = False
        self.sent: list[object] = []

    async def send(self, node: NodeId, message: object) -> None:
        if self.cut:
            raise PeerLost("cut")
        self.sent.append(message)
        if node == LEADER:
            if isinstance(message, Ask):
                self.desk.ask(FOLLOWER, message)
            elif isinstance(message, AskCancel):
                self.desk.cancel(FOLLOWER, message)
        else:
            self.door.take(LEADER, message)  # type: ignore[arg-type]
        await asyncio.sleep(0)


class Source:
    """The leader's own door, scripted."""

    def __init__(self, *script: Event | Exception, then_wait: bool = False) -> None:
        self.script = script
        self.then_wait = then_wait
        self.closed = asyncio.Event()

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Event, None]:
        try:
            for event in self.script:
                if isinstance(event, Exception):
                    raise event
                yield event
            if self.then_wait:
                await asyncio.Event().wait()
        finally:
            self.closed.set()


def joined(source: Source) -> Wire:
    wire = Wire()
    wire.door = ForwardDoor(wire)
    wire.desk = ForwardDesk(wire, source.generate)
    return wire


async def test_events_arrive_as_they_were() -> None:
    events = [Started(2), Delta("He", (1,)), Delta("llo", (2,)), DONE]
    wire = joined(Source(*events))
    got = [event async for event in wire.door.generate(LEADER, REQUEST)]
    assert got == events
    assert not any(isinstance(message, AskCancel) for message in wire.sent)


async def test_the_leaders_error_keeps_its_kind_and_its_words() -> None:
    wire = joined(Source(ContextTooLong("9 tokens, 8 fit.", "Shorten.", param="prompt")))
    with pytest.raises(ContextTooLong, match="9 tokens, 8 fit") as caught:
        async for _ in wire.door.generate(LEADER, REQUEST):
            pass
    assert caught.value.param == "prompt"
    assert caught.value.remedy == "Shorten."


async def test_a_client_that_leaves_ends_the_work_on_the_leader() -> None:
    source = Source(Started(2), Delta("a", (1,)), then_wait=True)
    wire = joined(source)
    async with contextlib.aclosing(wire.door.generate(LEADER, REQUEST)) as events:
        async for event in events:
            if isinstance(event, Delta):
                break
    async with asyncio.timeout(5):
        await source.closed.wait()
    await wire.desk.close()


async def test_a_lost_leader_ends_the_stream_with_an_error() -> None:
    wire = joined(Source(Started(2), then_wait=True))
    events = wire.door.generate(LEADER, REQUEST)
    assert await anext(events) == Started(2)
    wire.cut = True
    wire.door.lost(LEADER)
    with pytest.raises(PeerLost, match="leading PC is gone"):
        await anext(events)
    await wire.desk.close()


async def test_a_lost_follower_costs_no_more_work() -> None:
    source = Source(Started(2), then_wait=True)
    wire = joined(source)
    events = wire.door.generate(LEADER, REQUEST)
    await anext(events)
    wire.desk.lost(FOLLOWER)
    async with asyncio.timeout(5):
        await source.closed.wait()
    wire.cut = True
    await events.aclose()


async def test_an_answer_from_somebody_else_is_not_believed() -> None:
    wire = joined(Source(Started(2), then_wait=True))
    events = wire.door.generate(LEADER, REQUEST)
    await anext(events)
    wire.door.lost(NodeId("stranger"))
    wire.door.lost(LEADER)
    with pytest.raises(PeerLost):
        await anext(events)
    await wire.desk.close()
