"""The official client against our server: what it returns and what it raises."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pydantic
import pytest

from meshinfer.api.options import ApiOptions
from meshinfer.core.request import (
    Delta,
    Door,
    Finished,
    FinishReason,
    GrammarKind,
    Started,
    TokenLogprob,
)
from meshinfer.errors import Overloaded, PeerLost
from tests.api.scripted_door import (
    MODEL,
    PROMPT_TOKENS,
    ScriptedDoor,
    doing,
    drawing,
    in_turns,
    saying,
)
from tests.api.served import OPTIONS, Served, served

KEY = "SECRETKEY123"
ASK: list[Any] = [{"role": "user", "content": "hi"}]


@asynccontextmanager
async def client(
    door: Door, options: ApiOptions = OPTIONS, key: str = "unused"
) -> AsyncIterator[tuple[openai.AsyncOpenAI, Served]]:
    async with (
        served(door, options) as api,
        openai.AsyncOpenAI(base_url=f"{api.url}/v1", api_key=key, max_retries=0) as one,
    ):
        yield one, api


async def test_a_whole_chat() -> None:
    async with client(ScriptedDoor(saying("Hel", "lo"))) as (one, _):
        answer = await one.chat.completions.create(model=MODEL.model, messages=ASK)
    assert answer.choices[0].message.content == "Hello"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == PROMPT_TOKENS + 2


async def test_a_streamed_chat_with_usage_and_keep_alives() -> None:
    gate = asyncio.Event()
    end = Finished(FinishReason.LENGTH, 3, 2, seconds=1.0, first_token_s=0.1)
    door = ScriptedDoor(doing(Started(3), Delta("Hel", (1,)), gate, Delta("lo", (2,)), end))
    options = ApiOptions(key=None, keep_alive_s=0.005)
    parts = []
    async with client(door, options) as (one, api), asyncio.TaskGroup() as group:

        async def open_later() -> None:
            await api.get("/health")  # a round trip: a few keep-alives long
            gate.set()

        stream = await one.chat.completions.create(
            model=MODEL.model,
            messages=ASK,
            stream=True,
            stream_options={"include_usage": True},
        )
        group.create_task(open_later())
        parts = [part async for part in stream]
    assert parts[0].choices[0].delta.role == "assistant"
    assert "".join(one.choices[0].delta.content or "" for one in parts[:-1]) == "Hello"
    assert parts[-2].choices[0].finish_reason == "length"
    assert parts[-1].choices == []
    assert parts[-1].usage is not None
    assert parts[-1].usage.completion_tokens == 2
    assert len({part.id for part in parts}) == 1


async def test_a_plain_completion() -> None:
    async with client(ScriptedDoor(saying("a", "b"))) as (one, _):
        answer = await one.completions.create(model=MODEL.model, prompt="hi")
        assert answer.choices[0].text == "ab"
        stream = await one.completions.create(model=MODEL.model, prompt="hi", stream=True)
        assert "".join([part.choices[0].text async for part in stream]) == "ab"


async def test_two_choices_whole_and_streamed() -> None:
    async with client(ScriptedDoor(doing(*in_turns(("a", "b"), ("x",), cached=(4, 6))))) as (
        one,
        _,
    ):
        answer = await one.chat.completions.create(model=MODEL.model, messages=ASK, n=2)
        assert [choice.message.content for choice in answer.choices] == ["ab", "x"]
        assert [choice.finish_reason for choice in answer.choices] == ["stop", "length"]
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 3
        assert answer.usage.prompt_tokens_details is not None
        assert answer.usage.prompt_tokens_details.cached_tokens == 4
        stream = await one.chat.completions.create(
            model=MODEL.model, messages=ASK, n=2, stream=True
        )
        choices = [choice async for part in stream for choice in part.choices]
    texts = ["".join(c.delta.content or "" for c in choices if c.index == i) for i in range(2)]
    assert texts == ["ab", "x"]
    assert {c.index: c.finish_reason for c in choices} == {0: "stop", 1: "length"}


async def test_logprobs() -> None:
    script = drawing(TokenLogprob(b"hi", -0.5, ((b"hi", -0.5), (b"ho", -1.0))))
    async with client(ScriptedDoor(script)) as (one, _):
        answer = await one.chat.completions.create(
            model=MODEL.model, messages=ASK, logprobs=True, top_logprobs=2
        )
        shown = answer.choices[0].logprobs
        assert shown is not None
        assert shown.content is not None
        assert (shown.content[0].token, shown.content[0].bytes) == ("hi", [104, 105])
        assert [top.logprob for top in shown.content[0].top_logprobs] == [-0.5, -1.0]
        async with one.chat.completions.stream(
            model=MODEL.model, messages=ASK, logprobs=True, top_logprobs=2
        ) as stream:
            final = await stream.get_final_completion()
        assert final.choices[0].logprobs == shown
        older = await one.completions.create(model=MODEL.model, prompt="hi", logprobs=2)
    assert older.choices[0].logprobs is not None
    assert older.choices[0].logprobs.tokens == ["hi"]
    assert older.choices[0].logprobs.top_logprobs == [{"hi": -0.5, "ho": -1.0}]


class Weather(pydantic.BaseModel):
    city: str
    degrees: int


async def test_a_typed_answer() -> None:
    door = ScriptedDoor(saying('{"city":"Bern",', '"degrees":7}'))
    async with client(door) as (one, _):
        answer = await one.chat.completions.parse(
            model=MODEL.model, messages=ASK, response_format=Weather
        )
    assert answer.choices[0].message.parsed == Weather(city="Bern", degrees=7)
    grammar = door.requests[0].grammar
    assert grammar is not None
    assert grammar.kind is GrammarKind.JSON_SCHEMA
    assert list(json.loads(grammar.text)["properties"]) == ["city", "degrees"]


async def test_an_error_in_the_middle_is_raised() -> None:
    error = PeerLost("A PC of the ring is gone.", "Ask again.")
    async with client(ScriptedDoor(doing(Started(3), Delta("he", (1,)), error))) as (one, _):
        stream = await one.chat.completions.create(model=MODEL.model, messages=ASK, stream=True)
        for _ in range(2):
            assert (await anext(stream)).choices[0].finish_reason is None
        with pytest.raises(openai.APIError, match="A PC of the ring is gone") as caught:
            await anext(stream)
    assert caught.value.code == "peer_lost"


@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_at_the_start_is_a_status(stream: bool) -> None:
    async with client(ScriptedDoor(doing(Overloaded("Too many.")))) as (one, _):
        with pytest.raises(openai.RateLimitError) as caught:
            await one.chat.completions.create(model=MODEL.model, messages=ASK, stream=stream)
    assert caught.value.code == "overloaded"


async def test_a_whole_answer_that_breaks_is_raised() -> None:
    script = doing(Started(3), Delta("he", (1,)), PeerLost("A PC is gone."))
    async with client(ScriptedDoor(script)) as (one, _):
        with pytest.raises(openai.InternalServerError) as caught:
            await one.chat.completions.create(model=MODEL.model, messages=ASK)
    assert caught.value.status_code == 503


async def test_models_and_refusals() -> None:
    async with client(ScriptedDoor(saying("ok"))) as (one, _):
        assert [model.id async for model in one.models.list()] == [MODEL.model]
        assert (await one.models.retrieve(MODEL.model)).id == MODEL.model
        with pytest.raises(openai.NotFoundError) as missing:
            await one.chat.completions.create(model="gpt-4", messages=ASK)
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError) as refused:
            await one.chat.completions.create(model=MODEL.model, messages=ASK, n=17)
        assert refused.value.param == "n"
        with pytest.raises(openai.InternalServerError, match="not supported"):
            await one.embeddings.create(model=MODEL.model, input="hi")


async def test_the_key() -> None:
    options = ApiOptions(key=KEY)
    async with client(ScriptedDoor(saying("ok")), options, KEY) as (one, _):
        await one.models.list()
    async with client(ScriptedDoor(saying("ok")), options, "other") as (one, _):
        with pytest.raises(openai.AuthenticationError):
            await one.models.list()


async def test_leaving_a_stream_early_ends_the_request() -> None:
    never = asyncio.Event()
    door = ScriptedDoor(doing(Started(3), Delta("he", (1,)), never))
    async with client(door) as (one, _):
        stream = await one.chat.completions.create(model=MODEL.model, messages=ASK, stream=True)
        async for part in stream:
            if part.choices[0].delta.content:
                break
        await stream.close()
        await door.wait_released()
