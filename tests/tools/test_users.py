"""Users against the project's own API server on loopback, and against rude ones."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from meshinfer.core.request import GenerationRequest
from meshinfer.errors import Overloaded, PeerLost
from tests.api.scripted_door import MODEL, ScriptedDoor, Step, steps
from tests.api.served import OPTIONS, served
from tools.loads.arrivals import ThinkTime
from tools.loads.exchange import Answer, Question, Target, ask
from tools.loads.figures import figures_of, gaps, together_per_s
from tools.loads.users import Crowd, Extent


def question(text: str = "hi", stream: bool = True, **more: Any) -> Question:
    body: dict[str, Any] = {
        "model": MODEL.model,
        "messages": [{"role": "user", "content": text}],
        "stream": stream,
    }
    if stream:
        body["stream_options"] = {"include_usage": True}
    return Question(body, **more)


def echo(request: GenerationRequest) -> list[Step]:
    """The prompt's last word, in three pieces."""
    word = request.messages[-1].content.split()[-1] if request.messages else ""
    return steps("You said ", word, ".")


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_with_its_marks_tokens_and_text(stream: bool) -> None:
    async with served(ScriptedDoor(echo)) as server:
        answer = await ask(Target.parse(server.url), question("a b", stream, keep_text=True), 5)
    assert answer.fault is None
    assert answer.text == "You said b."
    assert (answer.tokens, answer.prompt_tokens) == (3, 7)
    assert len(answer.marks) == (3 if stream else 1)
    assert answer.asked <= answer.marks[0] <= answer.marks[-1] <= answer.ended


async def test_a_closed_loop_asks_as_often_as_it_was_told() -> None:
    door = ScriptedDoor(echo)
    async with served(door) as server:
        crowd = Crowd(Target.parse(server.url), question, Extent(None, 20, 5.0), seed=1)
        seconds = await crowd.closed(4, ThinkTime())
    figures = figures_of(crowd.asked, seconds)
    assert (figures.requests, figures.answered, figures.tokens) == (20, 20, 60)
    assert figures.faults == {}
    assert figures.first_token_s is not None
    assert figures.first_token_s.count == 20
    assert figures.between_tokens_s is not None
    assert figures.between_tokens_s.count == 40
    assert figures.tokens_per_s == pytest.approx(60 / seconds)


async def test_an_open_loop_does_not_wait_for_answers() -> None:
    gate = asyncio.Event()
    door = ScriptedDoor(lambda request: [gate, *steps("x", "y")])
    async with served(door) as server:
        crowd = Crowd(Target.parse(server.url), question, Extent(None, 8, 5.0), seed=1)
        run = asyncio.ensure_future(crowd.open(2000.0))
        await door.wait_asked(8)
        gate.set()
        await run
    assert [one.answer.fault for one in crowd.asked] == [None] * 8


@pytest.mark.slow  # the server's Retry-After is a whole second
@pytest.mark.parametrize("waits", [True, False])
async def test_a_busy_server_is_waited_for_or_counted(waits: bool) -> None:
    turns = iter([True, False])

    def busy_once(request: GenerationRequest) -> list[Step]:
        return [Overloaded("busy", retry_after_s=0.0)] if next(turns) else steps("x")

    async with served(ScriptedDoor(busy_once)) as server:
        extent = Extent(None, 1, 5.0, waits_when_busy=waits)
        crowd = Crowd(Target.parse(server.url), question, extent, seed=1)
        await crowd.closed(1, ThinkTime())
    figures = figures_of(crowd.asked, 1.0)
    assert figures.busy == 1
    assert figures.faults == ({} if waits else {"http 429": 1})


async def test_errors_are_told_apart() -> None:
    lost = ScriptedDoor(lambda request: [*steps("x")[:2], PeerLost("gone")])
    async with served(lost) as server:
        answer = await ask(Target.parse(server.url), question(), 5)
        assert (answer.fault, len(answer.marks)) == ("error peer_lost", 1)
        unknown = Question({**question().body, "model": "other"})
        assert (await ask(Target.parse(server.url), unknown, 5)).fault == "http 404"
    assert (await ask(Target.parse(server.url), question(), 5)).fault == "connect"


@asynccontextmanager
async def rude_server(reply: bytes) -> AsyncIterator[str]:
    """Says `reply` to everybody and closes."""

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}]")
        writer.write(reply)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(meet, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"


OK = b"HTTP/1.1 200 OK\r\nContent-Type: "


@pytest.mark.parametrize(
    ("reply", "fault"),
    [
        (b"", "broken off"),
        (b"hello\r\n\r\n", "not understood"),
        (OK + b'text/event-stream\r\n\r\ndata: {"choices":[{"text":"x"}]}\n\n', "broken off"),
        (OK + b"text/event-stream\r\n\r\ndata: {\n\n", "not understood"),
        (OK + b"application/json\r\n\r\n{", "not understood"),
    ],
)
async def test_servers_that_answer_nonsense(reply: bytes, fault: str) -> None:
    async with rude_server(reply) as url:
        assert (await ask(Target.parse(url), question(), 5)).fault == fault


async def test_silence_ends_with_the_patience() -> None:
    gate = asyncio.Event()
    async with served(ScriptedDoor(lambda request: [gate, *steps("x")])) as server:
        answer = await ask(Target.parse(server.url), question(), 0.05)
        gate.set()
    assert answer.fault == "timeout"


async def test_a_user_who_leaves_is_no_fault_and_the_server_notices() -> None:
    gate = asyncio.Event()
    door = ScriptedDoor(lambda request: [*steps("a", "b")[:3], gate])
    async with served(door) as server:
        answer = await ask(Target.parse(server.url), question(leave_after=2), 5)
        await door.wait_released()
    assert (answer.fault, answer.tokens) == (None, 2)


async def test_the_key_is_sent() -> None:
    async with served(ScriptedDoor(echo), replace(OPTIONS, key="secret")) as server:
        assert (await ask(Target.parse(server.url), question(), 5)).fault == "http 401"
        assert (await ask(Target.parse(server.url, "secret"), question(), 5)).fault is None


@pytest.mark.parametrize(
    ("url", "path", "port"),
    [
        ("http://pc:9480", "/v1/chat/completions", 9480),
        ("http://pc:9480/v1/", "/v1/chat/completions", 9480),
        ("https://pc/api/v1/chat/completions", "/api/v1/chat/completions", 443),
    ],
)
def test_addresses(url: str, path: str, port: int) -> None:
    target = Target.parse(url)
    assert (target.path, target.port) == (path, port)
    for other in ("pc:9480", "ftp://pc", ""):
        with pytest.raises(ValueError, match="no address"):
            Target.parse(other)


def test_tokens_a_second_are_counted_while_all_decode() -> None:
    first = Answer(0.0, array("d", [1.0, 2.0, 3.0, 4.0]), 4.0, None)
    second = Answer(0.0, array("d", [2.0, 3.0, 4.0, 5.0]), 5.0, None)
    assert together_per_s([first, second]) == pytest.approx(4 / 2.0)
    assert gaps([first, second], 2.0, 4.0) == [1.0, 1.0, 1.0, 1.0]
    late = Answer(0.0, array("d", [9.0, 10.0]), 10.0, None)
    with pytest.raises(ValueError, match="overlap"):
        together_per_s([first, late])
    with pytest.raises(ValueError, match="not all"):
        together_per_s([first, Answer(0.0, array("d"), 1.0, "connect")])
