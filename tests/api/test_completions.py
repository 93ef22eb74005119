"""POST /v1/completions: A02, A08, A23."""

from __future__ import annotations

import pytest

from tests.api.scripted_door import PROMPT_TOKENS, ScriptedDoor, saying, up_to_limit
from tests.api.served import CREATED, TEXT, TEXT_PATH, chunks, served


async def test_a_whole_answer() -> None:
    door = ScriptedDoor(saying("a", "b"))
    async with served(door) as api:
        reply = await api.post(TEXT_PATH, TEXT)
        assert reply.document == {
            "id": f"cmpl-{1:032x}",
            "object": "text_completion",
            "created": CREATED,
            "model": TEXT["model"],
            "choices": [{"index": 0, "text": "ab", "logprobs": None, "finish_reason": "stop"}],
            "usage": {
                "prompt_tokens": PROMPT_TOKENS,
                "completion_tokens": 2,
                "total_tokens": PROMPT_TOKENS + 2,
            },
        }
    assert door.requests[0].prompt == "hi"
    assert door.requests[0].messages == ()


async def test_a_streamed_answer() -> None:
    async with served(ScriptedDoor(saying("a", "b"))) as api:
        body = TEXT | {"stream_options": {"include_usage": True}}
        events = await api.events(TEXT_PATH, body)
        parts = chunks(events)
        assert [one["choices"] for one in parts] == [
            [{"index": 0, "text": "a", "logprobs": None, "finish_reason": None}],
            [{"index": 0, "text": "b", "logprobs": None, "finish_reason": None}],
            [{"index": 0, "text": "", "logprobs": None, "finish_reason": "stop"}],
            [],
        ]
        assert {one["id"] for one in parts} == {f"cmpl-{1:032x}"}
        assert {one["object"] for one in parts} == {"text_completion"}
        assert [one["usage"] is None for one in parts] == [True, True, True, False]
        assert events[-1] == "data: [DONE]"


async def test_the_limit_holds_here_too() -> None:
    async with served(ScriptedDoor(up_to_limit)) as api:
        document = (await api.post(TEXT_PATH, TEXT | {"max_tokens": 5})).document
        assert document["choices"][0] == {
            "index": 0, "text": "xxxxx", "logprobs": None, "finish_reason": "length",
        }  # fmt: skip
        parts = chunks(await api.events(TEXT_PATH, TEXT | {"max_tokens": 5}))
        assert "".join(one["choices"][0]["text"] for one in parts) == "xxxxx"
        assert parts[-1]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("prompt", ["", [], [1, 2, 3], ["a", "b"], None])
async def test_prompts_that_are_refused_leave_the_server_well(prompt: object) -> None:
    async with served(ScriptedDoor(saying("ok"))) as api:
        reply = await api.post(TEXT_PATH, TEXT | {"prompt": prompt})
        assert reply.status == 400
        assert reply.error["param"] == "prompt"
        assert (await api.post(TEXT_PATH, TEXT)).status == 200
