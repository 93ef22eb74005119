"""POST /v1/completions: A02, A08, A23, A26."""

from __future__ import annotations

from typing import Any

import pytest

from meshinfer.core.request import TokenLogprob
from tests.api.scripted_door import (
    PROMPT_TOKENS,
    ScriptedDoor,
    doing,
    drawing,
    in_turns,
    saying,
    up_to_limit,
)
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
                "prompt_tokens_details": {"cached_tokens": 0},
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


async def test_choices_whole_and_streamed() -> None:
    async with served(ScriptedDoor(doing(*in_turns(("a", "b"), ("x",))))) as api:
        document = (await api.post(TEXT_PATH, TEXT | {"n": 2, "best_of": 2})).document
        assert [
            (one["index"], one["text"], one["finish_reason"]) for one in document["choices"]
        ] == [(0, "ab", "stop"), (1, "x", "length")]
        events = await api.events(TEXT_PATH, TEXT | {"n": 2})
        choices = [part["choices"][0] for part in chunks(events)]
        assert [(one["index"], one["text"], one["finish_reason"]) for one in choices] == [
            (0, "a", None),
            (1, "x", None),
            (0, "b", None),
            (1, "", "length"),
            (0, "", "stop"),
        ]
        assert events.count("data: [DONE]") == 1


async def test_logprobs_in_the_older_shape() -> None:
    half, rest = b"\xf0\x9f", b"\x91\x8b!"
    script = drawing(
        TokenLogprob(b"hi", -0.25, ((b" ho", -0.125), (b"\xff", -2.0), (b"\xfe", -3.0))),
        TokenLogprob(half, -0.5, ()),
        TokenLogprob(rest, -1.0, ()),
        TokenLogprob(b"x", -1.5, ()),
    )
    shown: dict[str, Any] = {
        "tokens": ["hi", "\ufffd", "\ufffd\ufffd!", "x"],
        "token_logprobs": [-0.25, -0.5, -1.0, -1.5],
        "top_logprobs": [
            {"hi": -0.25, " ho": -0.125, "\ufffd": -2.0},
            {"\ufffd": -0.5},
            {"\ufffd\ufffd!": -1.0},
            {"x": -1.5},
        ],
        "text_offset": [0, 2, 2, 4],
    }
    async with served(ScriptedDoor(script)) as api:
        document = (await api.post(TEXT_PATH, TEXT | {"logprobs": 3})).document
        assert document["choices"][0]["logprobs"] == shown
        parts = chunks(await api.events(TEXT_PATH, TEXT | {"logprobs": 3}))
        found = [part["choices"][0]["logprobs"] for part in parts]
    assert found.pop() is None
    for key, values in shown.items():
        assert [one[key] for one in found] == [[value] for value in values]


@pytest.mark.parametrize("prompt", ["", [], [1, 2, 3], ["a", "b"], None])
async def test_prompts_that_are_refused_leave_the_server_well(prompt: object) -> None:
    async with served(ScriptedDoor(saying("ok"))) as api:
        reply = await api.post(TEXT_PATH, TEXT | {"prompt": prompt})
        assert reply.status == 400
        assert reply.error["param"] == "prompt"
        assert (await api.post(TEXT_PATH, TEXT)).status == 200
