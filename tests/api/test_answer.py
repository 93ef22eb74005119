"""Events of a door -> pieces of an answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from meshinfer.api.answer import ChoiceEnd, Ending, Piece, Text, pieces
from meshinfer.api.traffic import Traffic, Watch
from meshinfer.core.ids import ModelId, RequestId
from meshinfer.core.request import (
    GREEDY,
    Delta,
    FinishReason,
    GenerationRequest,
    Started,
    TokenLogprob,
)
from meshinfer.errors import ContextTooLong, InvalidRequest, MeshInferError
from tests.api.scripted_door import PROMPT_TOKENS, ScriptedDoor, doing, drawing, in_turns, saying

REQUEST = GenerationRequest(RequestId("r"), ModelId("m"), (), "hi", GREEDY, None)


async def all_of(door: ScriptedDoor, choices: int = 1) -> list[Piece]:
    watch = Watch(Traffic(lambda: 0.0))
    async with asyncio.timeout(1):
        return [one async for one in pieces(door.generate(REQUEST), choices, "prompt", watch)]


async def test_empty_texts_are_counted_and_not_shown() -> None:
    assert await all_of(ScriptedDoor(saying("", "a", ""))) == [
        Started(PROMPT_TOKENS),
        Text("a"),
        ChoiceEnd(0, FinishReason.STOP),
        Ending(PROMPT_TOKENS, 3, 0),
    ]


async def test_logprobs_without_text_are_shown() -> None:
    logprob = TokenLogprob(b"\xf0\x9f", -0.5, ())
    found = await all_of(ScriptedDoor(drawing(logprob)))
    assert found[1] == Text("", 0, (logprob,))


async def test_choices_come_as_the_door_gives_them_and_share_one_prompt() -> None:
    script = in_turns(("a", "b"), ("x",), ("",), cached=(0, 6, 6))
    assert await all_of(ScriptedDoor(doing(*script)), 3) == [
        Started(PROMPT_TOKENS),
        Text("a", 0),
        Text("x", 1),
        Text("b", 0),
        ChoiceEnd(2, FinishReason.STOP),
        ChoiceEnd(1, FinishReason.LENGTH),
        ChoiceEnd(0, FinishReason.STOP),
        Ending(PROMPT_TOKENS, 4, 0),
    ]


async def test_after_the_last_choice_the_door_is_closed_without_waiting_for_more() -> None:
    door = ScriptedDoor(doing(*in_turns(("a",), ("b",)), asyncio.Event()))
    await all_of(door, 2)
    assert door.released == 1


async def test_a_choice_that_never_ends_is_no_success() -> None:
    with pytest.raises(MeshInferError, match="broke off"):
        await all_of(ScriptedDoor(doing(*in_turns(("a",), ("b",)))), 3)


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
