"""Events of a door -> pieces of an answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from meshinfer.api.answer import Ending, Piece, Text, pieces
from meshinfer.core.ids import ModelId, RequestId
from meshinfer.core.request import GREEDY, Delta, FinishReason, GenerationRequest, Started
from meshinfer.errors import ContextTooLong, InvalidRequest, MeshInferError
from tests.api.scripted_door import PROMPT_TOKENS, ScriptedDoor, doing, saying, steps

REQUEST = GenerationRequest(RequestId("r"), ModelId("m"), (), "hi", GREEDY, None)


async def all_of(door: ScriptedDoor, *stops: str) -> list[Piece]:
    async with asyncio.timeout(1):
        return [one async for one in pieces(door.generate(REQUEST), stops, "prompt")]


async def test_empty_texts_are_counted_and_not_shown() -> None:
    assert await all_of(ScriptedDoor(saying("", "a", ""))) == [
        Started(PROMPT_TOKENS),
        Text("a"),
        Ending(FinishReason.STOP, PROMPT_TOKENS, 3),
    ]


async def test_a_stop_string_closes_the_door_without_waiting_for_more() -> None:
    door = ScriptedDoor(doing(*steps("a", "EN", "D!")[:-1], asyncio.Event()))
    assert await all_of(door, "END") == [
        Started(PROMPT_TOKENS),
        Text("a"),
        Ending(FinishReason.STOP, PROMPT_TOKENS, 3),
    ]
    assert door.released == 1


async def test_a_stop_string_in_the_last_text_beats_the_limit() -> None:
    door = ScriptedDoor(saying("a", "END", reason=FinishReason.LENGTH))
    assert (await all_of(door, "END"))[-1] == Ending(FinishReason.STOP, PROMPT_TOKENS, 2)


@pytest.mark.parametrize("script", [[], [Started(3)], [Started(3), Delta("a", (1,))]])
async def test_without_a_finished_there_is_no_success(script: list[Any]) -> None:
    with pytest.raises(MeshInferError, match="broke off"):
        await all_of(ScriptedDoor(doing(*script)))


@pytest.mark.parametrize(
    ("error", "param"),
    [(ContextTooLong("Long."), "prompt"), (InvalidRequest("Bad.", param="stop"), "stop")],
)
async def test_the_prompt_field_is_named_for_the_client(error: InvalidRequest, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await all_of(ScriptedDoor(doing(error)))
    assert caught.value.param == param
