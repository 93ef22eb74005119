"""The official client against our server: what it returns and what it raises."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest

from meshinfer.api.options import ApiOptions
from meshinfer.core.request import Delta, Door, Finished, FinishReason, Started
from meshinfer.errors import Overloaded, PeerLost
from tests.api.scripted_door import MODEL, PROMPT_TOKENS, ScriptedDoor, doing, saying
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
            await one.chat.completions.create(model=MODEL.model, messages=ASK, n=3)
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
