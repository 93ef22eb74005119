"""POST /v1/chat/completions, whole and streamed: A01, A02, A06, A08, A16, A26."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from meshinfer.core.request import FinishReason, TokenLogprob
from meshinfer.errors import InvalidRequest
from tests.api.scripted_door import (
    PROMPT_TOKENS,
    Script,
    ScriptedDoor,
    doing,
    drawing,
    in_turns,
    saying,
    steps,
    up_to_limit,
)
from tests.api.served import CHAT, CHAT_PATH, CREATED, chunks, served

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


async def whole(script: Script, **more: Any) -> dict[str, Any]:
    async with served(ScriptedDoor(script)) as api:
        reply = await api.post(CHAT_PATH, CHAT | more)
        assert reply.status == 200
        document: dict[str, Any] = reply.document
        return document


async def stream(script: Script, **more: Any) -> list[dict[str, Any]]:
    async with served(ScriptedDoor(script)) as api:
        return chunks(await api.events(CHAT_PATH, CHAT | more))


def text_of(parts: list[dict[str, Any]]) -> str:
    return "".join(choice["delta"].get("content", "") for one in parts for choice in one["choices"])


async def test_a_whole_answer() -> None:
    assert await whole(saying("Hel", "", "lo")) == {
        "id": f"chatcmpl-{1:032x}",
        "object": "chat.completion",
        "created": CREATED,
        "model": CHAT["model"],
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": PROMPT_TOKENS,
            "completion_tokens": 3,
            "total_tokens": PROMPT_TOKENS + 3,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


async def test_a_streamed_answer() -> None:
    parts = await stream(saying("Hel", "", "lo"))
    assert [one["choices"][0] for one in parts] == [
        {
            "index": 0,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        },
        {"index": 0, "delta": {"content": "Hel"}, "logprobs": None, "finish_reason": None},
        {"index": 0, "delta": {"content": "lo"}, "logprobs": None, "finish_reason": None},
        {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"},
    ]
    for one in parts:
        assert set(one) == {"id", "object", "created", "model", "choices"}
        assert one["id"] == f"chatcmpl-{1:032x}"
        assert one["object"] == "chat.completion.chunk"
        assert one["created"] == CREATED
        assert one["model"] == CHAT["model"]


async def test_the_usage_chunk_comes_last_and_only_when_asked() -> None:
    parts = await stream(saying("a", "b"), stream_options={"include_usage": True})
    assert parts[-1]["choices"] == []
    assert parts[-1]["usage"]["completion_tokens"] == 2
    assert parts[-1]["usage"]["total_tokens"] == PROMPT_TOKENS + 2
    assert all(one["usage"] is None and one["choices"] for one in parts[:-1])


@pytest.mark.parametrize(
    "options", [None, {}, {"include_usage": False}, {"include_usage": None}], ids=str
)
async def test_unasked_there_is_no_usage(options: object) -> None:
    parts = await stream(saying("a"), stream_options=options)
    assert all("usage" not in one and one["choices"] for one in parts)


async def test_stream_options_of_a_whole_answer_are_ignored() -> None:
    document = await whole(saying("a"), stream_options={"include_usage": True})
    assert document["usage"]["completion_tokens"] == 1


@pytest.mark.parametrize("reason", [STOP, LENGTH])
async def test_finish_reasons(reason: FinishReason) -> None:
    script = saying("a", "b", reason=reason)
    assert (await whole(script))["choices"][0]["finish_reason"] == reason.value
    reasons = [one["choices"][0]["finish_reason"] for one in await stream(script)]
    assert reasons == [None, None, None, reason.value]


async def test_the_limit_reaches_the_door() -> None:
    document = await whole(up_to_limit, max_tokens=5)
    assert document["usage"]["completion_tokens"] == 5
    assert document["choices"][0]["finish_reason"] == "length"
    assert text_of(await stream(up_to_limit, max_completion_tokens=5)) == "xxxxx"


async def test_the_stop_strings_reach_the_door() -> None:
    door = ScriptedDoor(saying("ABC"))
    async with served(door) as api:
        await api.post(CHAT_PATH, CHAT | {"stop": ["DEF", "G"]})
    assert door.requests[0].stop == ("DEF", "G")


async def test_choices_of_a_whole_answer() -> None:
    script = doing(*in_turns(("a", "b"), ("x",), cached=(4, 6)))
    document = await whole(script, n=2)
    assert [
        (one["index"], one["message"]["content"], one["finish_reason"])
        for one in document["choices"]
    ] == [(0, "ab", "stop"), (1, "x", "length")]
    assert document["usage"] == {
        "prompt_tokens": PROMPT_TOKENS,
        "completion_tokens": 3,
        "total_tokens": PROMPT_TOKENS + 3,
        "prompt_tokens_details": {"cached_tokens": 4},
    }


async def test_choices_of_a_stream_have_a_chunk_each() -> None:
    script = doing(*in_turns(("a", "b"), ("x",)))
    parts = await stream(script, n=2, stream_options={"include_usage": True})
    assert [
        (one["index"], one["delta"], one["finish_reason"])
        for part in parts
        for one in part["choices"]
    ] == [
        (0, {"role": "assistant", "content": ""}, None),
        (1, {"role": "assistant", "content": ""}, None),
        (0, {"content": "a"}, None),
        (1, {"content": "x"}, None),
        (0, {"content": "b"}, None),
        (1, {}, "length"),
        (0, {}, "stop"),
    ]
    assert all(len(part["choices"]) == 1 for part in parts[:-1])
    assert parts[-1]["usage"]["completion_tokens"] == 3


async def test_logprobs_whole_and_streamed() -> None:
    halves = TokenLogprob(b"\xf0\x9f", -0.5, ()), TokenLogprob(b"\x91\x8b", -math.inf, ())
    first = TokenLogprob(b"hi", -0.25, ((b"hi", -0.25), (b"\xff", -2.0)))
    script = drawing(first, *halves)
    entries = [
        {
            "token": "hi",
            "logprob": -0.25,
            "bytes": [104, 105],
            "top_logprobs": [
                {"token": "hi", "logprob": -0.25, "bytes": [104, 105]},
                {"token": "\ufffd", "logprob": -2.0, "bytes": [255]},
            ],
        },
        {"token": "\ufffd", "logprob": -0.5, "bytes": [240, 159], "top_logprobs": []},
        {"token": "\ufffd\ufffd", "logprob": -9999.0, "bytes": [145, 139], "top_logprobs": []},
    ]
    asked = {"logprobs": True, "top_logprobs": 2}
    choice = (await whole(script, **asked))["choices"][0]
    assert choice["logprobs"] == {"content": entries, "refusal": None}
    parts = [part["choices"][0]["logprobs"] for part in await stream(script, **asked)]
    each = [{"content": [one], "refusal": None} for one in entries]
    assert parts == [None, *each, None]


async def test_an_answer_without_tokens_has_empty_logprobs() -> None:
    choice = (await whole(saying(), logprobs=True))["choices"][0]
    assert choice["logprobs"] == {"content": [], "refusal": None}


async def test_an_answer_without_text() -> None:
    assert (await whole(saying()))["choices"][0]["message"]["content"] == ""
    parts = await stream(saying())
    assert [one["choices"][0]["delta"] for one in parts] == [
        {"role": "assistant", "content": ""},
        {},
    ]


async def test_odd_text_survives() -> None:
    odd = "\u2028\x85\r\n data: [DONE]\n\n👋 \x00"
    assert text_of(await stream(saying(odd))) == odd
    assert (await whole(saying(odd)))["choices"][0]["message"]["content"] == odd


async def test_a_refused_request_leaves_the_server_well() -> None:
    door = ScriptedDoor(saying("ok"))
    async with served(door) as api:
        odd: list[object] = [[], None, {}, [{}]]
        for messages in odd:
            reply = await api.post(CHAT_PATH, CHAT | {"messages": messages})
            assert reply.status == 400
            assert reply.error["param"] == "messages"
            assert reply.error["code"] == InvalidRequest.code
        assert door.requests == []
        assert (await api.post(CHAT_PATH, CHAT)).status == 200


@pytest.mark.parametrize("model", ["other", "", "SMOLLM2-135M", "../x", None])
async def test_an_unknown_model(model: str | None) -> None:
    door = ScriptedDoor(saying("ok"))
    async with served(door) as api:
        reply = await api.post(CHAT_PATH, CHAT | {"model": model})
        assert reply.status == 404
        assert reply.error["code"] == "model_not_found"
        assert reply.error["param"] == "model"
        assert "'smollm2-135m'" in reply.error["message"]
    assert door.requests == []


async def test_each_request_draws_its_own_seed() -> None:
    door = ScriptedDoor(saying("ok"))
    async with served(door) as api:
        for _ in range(2):
            await api.post(CHAT_PATH, CHAT)
        await api.post(CHAT_PATH, CHAT | {"seed": 5})
    seeds = [one.sampling.seed for one in door.requests]
    assert seeds[0] != seeds[1]
    assert seeds[2] == 5
    assert len({one.id for one in door.requests}) == 3


@pytest.mark.slow
async def test_thirty_two_clients_at_once_each_get_their_own_answer() -> None:
    go = asyncio.Event()

    def echo(request: Any) -> list[Any]:
        start, *rest = steps(*request.messages[0].content)
        return [start, go, *rest]

    door = ScriptedDoor(echo)
    async with served(door) as api, asyncio.TaskGroup() as clients:
        tasks = {}
        for number in range(32):
            text = f"client {number}"
            body = CHAT | {"messages": [{"role": "user", "content": text}]}
            tasks[text] = clients.create_task(api.events(CHAT_PATH, body))
        await door.wait_asked(32)
        go.set()
        for text, task in tasks.items():
            events = await task
            assert text_of(chunks(events)) == text
            assert events.count("data: [DONE]") == 1
    assert door.released == 32
