"""The bytes of a stream: A02, A03, A04, A05, A09, A16."""

from __future__ import annotations

import asyncio
import json

import pytest

from meshinfer.api.options import ApiOptions
from meshinfer.core.request import Delta, Finished, FinishReason, Started
from meshinfer.errors import Overloaded, PeerLost
from tests.api.scripted_door import ScriptedDoor, doing, saying, steps
from tests.api.served import CHAT, CHAT_PATH, TEXT, TEXT_PATH, chunks, read_until, served

STREAM = CHAT | {"stream": True}
FAST = ApiOptions(key=None, keep_alive_s=0.01, header_patience_s=0.01, drain_s=0.05)
END = Finished(FinishReason.STOP, 3, 1, seconds=1.0, first_token_s=0.1)


@pytest.mark.parametrize(("path", "body"), [(CHAT_PATH, CHAT), (TEXT_PATH, TEXT)])
@pytest.mark.parametrize("count", [0, 1, 50])
async def test_every_stream_ends_with_one_done_and_the_socket_stays(
    path: str, body: dict[str, object], count: int
) -> None:
    async with (
        served(ScriptedDoor(saying(*["x"] * count))) as api,
        api.raw_post(path, body | {"stream": True}) as (reader, writer),
    ):
        head = (await read_until(reader, b"\r\n\r\n")).decode().lower()
        assert "content-type: text/event-stream\r\n" in head
        assert "cache-control: no-cache\r\n" in head
        assert "content-encoding" not in head
        rest = await read_until(reader, b"\r\n0\r\n\r\n")  # the end of a chunked body
        assert rest.count(b"data: [DONE]") == 1
        assert rest.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        writer.write(f"GET /health HTTP/1.1\r\nHost: {api.address}\r\n\r\n".encode())
        assert (await read_until(reader, b"\r\n")) == b"HTTP/1.1 200 OK\r\n"


async def test_only_data_lines_and_comments() -> None:
    gates = [asyncio.Event() for _ in range(2)]
    door = ScriptedDoor(doing(gates[0], Started(3), gates[1], Delta("hi", (1,)), END))
    async with served(door, FAST) as api, api.raw_post(CHAT_PATH, STREAM) as (reader, _):
        head = await read_until(reader, b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        body = b""
        for gate in gates:
            for _ in range(3):
                body += await read_until(reader, b": waiting\n\n")
            gate.set()
        body += await read_until(reader, b"data: [DONE]\n\n")
    lines = [line for line in body.decode().splitlines() if line.startswith((":", "data"))]
    assert lines.count(": waiting") >= 6
    assert len([line for line in lines if line.startswith("data: ")]) == 4
    # what is left is the framing of HTTP chunks: sizes in hex and empty lines
    others = [line for line in body.decode().splitlines() if line not in lines]
    assert all(set(line) <= set("0123456789abcdef") for line in others)


async def test_a_silent_door_does_not_hold_the_headers() -> None:
    never = asyncio.Event()
    door = ScriptedDoor(doing(never))
    async with served(door, FAST) as api, api.raw_post(CHAT_PATH, STREAM) as (reader, _):
        head = await read_until(reader, b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        assert b": waiting" in await read_until(reader, b"\n\n")


def test_headers_and_comments_are_in_time_by_default() -> None:
    options = ApiOptions(key=None)
    assert options.header_patience_s < 1.0
    assert options.keep_alive_s < 10.0


async def test_the_role_comes_as_soon_as_the_request_is_admitted() -> None:
    never = asyncio.Event()
    door = ScriptedDoor(doing(Started(3), never))
    async with served(door) as api, api.raw_post(CHAT_PATH, STREAM) as (reader, _):
        await read_until(reader, b"\r\n\r\n")
        assert b'"role":"assistant"' in await read_until(reader, b"\n\n")


@pytest.mark.parametrize(
    "error", [PeerLost("A PC is gone.", "Ask again."), ValueError("CANARY77")], ids=["known", "bug"]
)
async def test_a_failure_in_the_middle_is_told_and_closes(error: Exception) -> None:
    door = ScriptedDoor(doing(Started(3), Delta("he", (1,)), error))
    async with (
        served(door) as api,
        api.raw_post(CHAT_PATH, STREAM) as (reader, _),
    ):
        async with asyncio.timeout(1):
            raw = await reader.read()  # up to the close
    text = raw.decode()
    assert "[DONE]" not in text
    assert '"finish_reason":"stop"' not in text
    assert "CANARY77" not in text
    last = text.rsplit("data: ", 1)[1].split("\n\n")[0]
    envelope = json.loads(last)["error"]
    assert set(envelope) == {"message", "type", "param", "code"}
    known = isinstance(error, PeerLost)
    assert envelope["code"] == ("peer_lost" if known else "internal_error")
    assert envelope["type"] == "server_error"


async def test_a_late_refusal_is_told_in_the_stream() -> None:
    gate = asyncio.Event()
    door = ScriptedDoor(doing(gate, Overloaded("Too many.", "Come back.")))
    async with served(door, FAST) as api, api.raw_post(CHAT_PATH, STREAM) as (reader, _):
        await read_until(reader, b": waiting")
        gate.set()
        async with asyncio.timeout(1):
            rest = await reader.read()
        assert b'"code":"overloaded"' in rest
        assert b"[DONE]" not in rest


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("is_queued", [False, True], ids=["running", "queued"])
async def test_a_client_that_goes_ends_its_request(is_stream: bool, is_queued: bool) -> None:
    never = asyncio.Event()
    script = [never] if is_queued else [*steps("a", "b", "c", "d", "e")[:-1], never]
    door = ScriptedDoor(doing(*script))
    async with served(door) as api:
        async with api.raw_post(CHAT_PATH, CHAT | {"stream": is_stream}) as (reader, _):
            await door.wait_asked()
            if is_stream and not is_queued:
                await read_until(reader, b'"e"')
            assert door.released == 0
        await door.wait_released()


async def test_a_client_that_goes_leaves_the_others_alone() -> None:
    gate = asyncio.Event()
    door = ScriptedDoor(lambda _: [Started(1), gate, Delta("ok", (1,)), END])
    async with served(door) as api, asyncio.TaskGroup() as clients:
        stays = clients.create_task(api.events(CHAT_PATH, CHAT))
        await door.wait_asked()
        async with api.raw_post(CHAT_PATH, STREAM) as (reader, _):
            await door.wait_asked(2)
            await read_until(reader, b"assistant")
        await door.wait_released()
        gate.set()
        assert chunks(await stays)[1]["choices"][0]["delta"] == {"content": "ok"}
