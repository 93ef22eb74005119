"""The feed of one answer: bounded waits, cancellation, failure from outside."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from meshinfer.api.answer import ChoiceEnd, Ending, Piece, Text, pieces
from meshinfer.api.feed import AnswerFeed
from meshinfer.api.traffic import Traffic, Watch
from meshinfer.core.ids import ModelId, RequestId
from meshinfer.core.request import GREEDY, Delta, GenerationRequest, Started
from meshinfer.errors import NotReady, PeerLost
from tests.api.scripted_door import ScriptedDoor, doing, saying

REQUEST = GenerationRequest(RequestId("r"), ModelId("m"), (), "hi", GREEDY, None)


def feed_of(door: ScriptedDoor) -> AnswerFeed:
    watch = Watch(Traffic(lambda: 0.0))
    return AnswerFeed(pieces(door.generate(REQUEST), 1, "prompt", watch))


async def test_pieces_come_in_order() -> None:
    door = ScriptedDoor(saying("a", "b"))
    async with feed_of(door) as feed:
        found = [await feed.next(1) for _ in range(5)]
    assert [type(one) for one in found] == [Started, Text, Text, ChoiceEnd, Ending]


async def test_silence_raises_and_costs_nothing() -> None:
    gate = asyncio.Event()
    async with feed_of(ScriptedDoor(doing(gate, Started(3)))) as feed:
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await feed.next(0.001)
        gate.set()
        assert await feed.next(1) == Started(3)


async def test_leaving_cancels_the_request_and_waits_for_it() -> None:
    door = ScriptedDoor(doing(Started(3), asyncio.Event()))
    async with feed_of(door) as feed:
        await feed.next(1)
        assert door.released == 0
    assert door.released == 1


async def test_failure_from_outside_comes_after_what_has_arrived() -> None:
    door = ScriptedDoor(doing(Started(3), Delta("a", (1,)), asyncio.Event()))
    async with feed_of(door) as feed:
        assert await feed.next(1) == Started(3)
        feed.fail(NotReady("Stopping."))
        assert await feed.next(1) == Text("a")
        with pytest.raises(NotReady):
            await feed.next(1)
        await door.wait_released()


async def test_the_error_of_the_door_is_raised() -> None:
    async with feed_of(ScriptedDoor(doing(Started(3), PeerLost("Gone.")))) as feed:
        await feed.next(1)
        with pytest.raises(PeerLost):
            await feed.next(1)


async def test_a_generator_that_was_never_asked_is_left_alone() -> None:
    async def never() -> AsyncGenerator[Piece, None]:
        raise AssertionError("asked")
        yield Started(1)

    async with AnswerFeed(never()):
        pass
