"""Pieces of several choices -> whole choices."""

from __future__ import annotations

import pytest

from meshinfer.api.answer import Ending, pieces
from meshinfer.api.feed import AnswerFeed
from meshinfer.api.traffic import Traffic, Watch
from meshinfer.api.whole import WholeChoice, collect
from meshinfer.core.ids import ModelId, RequestId
from meshinfer.core.request import GREEDY, FinishReason, GenerationRequest, TokenLogprob
from meshinfer.errors import PeerLost
from tests.api.scripted_door import PROMPT_TOKENS, ScriptedDoor, Step, doing, drawing, in_turns

REQUEST = GenerationRequest(RequestId("r"), ModelId("m"), (), "hi", GREEDY, None)
STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


async def whole(door: ScriptedDoor, choices: int) -> tuple[list[WholeChoice], Ending]:
    found = pieces(door.generate(REQUEST), choices, "prompt", Watch(Traffic(lambda: 0.0)))
    async with AnswerFeed(found) as feed:
        return await collect(feed, choices)


async def test_choices_are_in_their_order_whatever_came_first() -> None:
    script = in_turns(("a", "b"), (), ("x", "", "y"))
    assert await whole(ScriptedDoor(doing(*script)), 3) == (
        [WholeChoice("ab", (), STOP), WholeChoice("", (), LENGTH), WholeChoice("xy", (), STOP)],
        Ending(PROMPT_TOKENS, 5, 0),
    )


async def test_logprobs_are_kept_in_order() -> None:
    tokens = tuple(TokenLogprob(bytes([65 + number]), -number / 2, ()) for number in range(3))
    (choice,), _ = await whole(ScriptedDoor(drawing(*tokens)), 1)
    assert choice == WholeChoice("ABC", tokens, STOP)


async def test_an_error_leaves_nothing() -> None:
    script: list[Step] = [*in_turns(("a",), ("b",))[:-1], PeerLost("Gone.")]
    with pytest.raises(PeerLost):
        await whole(ScriptedDoor(doing(*script)), 2)
