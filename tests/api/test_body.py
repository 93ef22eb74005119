"""A22, A29: bodies that are no JSON object, or too large."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import AsyncIterator

import pytest

from meshinfer.api.body import parse_object
from meshinfer.api.options import MIB
from meshinfer.errors import InvalidRequest
from tests.api.scripted_door import ScriptedDoor, saying
from tests.api.served import CHAT, CHAT_PATH, read_until, served


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"{'a': 1}",
        b"[]",
        b'"text"',
        b"null",
        b'{"temperature": NaN}',
        b'{"temperature": -Infinity}',
        b"\xff\xfe\xfa",
        b'{"a": "\xff"}',
        b"[" * 200_000,
        b'{"a":' * 200_000,
        b'{"seed": ' + b"9" * 5000 + b"}",
    ],
)
def test_what_is_no_json_object_is_refused(raw: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_object(raw)
    assert caught.value.param is None
    error = caught.value
    # the parser's own error quotes the body: nobody may print it as the cause
    assert error.__cause__ is None
    assert error.__context__ is None or error.__suppress_context__


def test_the_place_of_the_mistake_is_told() -> None:
    with pytest.raises(InvalidRequest, match="line 2, column 6"):
        parse_object(b'{\n"a": x}')


def large(size: int) -> bytes:
    """A valid chat body of `size` bytes."""
    empty = json.dumps(CHAT | {"messages": [{"role": "user", "content": ""}]})
    content = "x" * (size - len(empty))
    return json.dumps(CHAT | {"messages": [{"role": "user", "content": content}]}).encode()


async def in_parts(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), MIB):
        yield body[start : start + MIB]


@pytest.mark.slow
@pytest.mark.parametrize("is_chunked", [False, True])
async def test_sixteen_mebibytes_are_taken_and_more_is_refused(is_chunked: bool) -> None:
    door = ScriptedDoor(saying("ok"))
    async with served(door) as api:
        for size, status in ((1_100_000, 200), (16 * MIB, 200), (16 * MIB + 1, 413)):
            body = large(size)
            assert len(body) == size
            reply = await api.ask(
                "POST", CHAT_PATH, data=in_parts(body) if is_chunked else io.BytesIO(body)
            )
            assert reply.status == status
        assert reply.error["code"] == "request_too_large"
        assert str(16 * MIB) in reply.error["message"]
    assert len(door.requests) == 2


async def test_an_announced_giant_is_refused_before_it_is_sent() -> None:
    async with served(ScriptedDoor(saying("ok"))) as api:
        head = f"POST {CHAT_PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {100 * MIB}"
        async with api.raw(head.encode() + b"\r\n\r\n") as (reader, _):
            assert (await read_until(reader, b"\r\n")).startswith(b"HTTP/1.1 413 ")


async def test_a_compressed_giant_is_refused() -> None:
    async with served(ScriptedDoor(saying("ok"))) as api:
        reply = await api.ask(
            "POST",
            CHAT_PATH,
            data=gzip.compress(b" " * (20 * MIB)),
            headers={"Content-Encoding": "gzip"},
        )
        assert reply.status == 413
        assert reply.error["code"] == "request_too_large"


async def test_damaged_compression_is_the_clients_mistake() -> None:
    async with served(ScriptedDoor(saying("ok"))) as api:
        reply = await api.ask(
            "POST", CHAT_PATH, data=b"not gzip", headers={"Content-Encoding": "gzip"}
        )
        assert reply.status == 400
        assert reply.error["code"] == "invalid_request"


async def test_bad_json_over_http() -> None:
    async with served(ScriptedDoor(saying("ok"))) as api:
        reply = await api.ask("POST", CHAT_PATH, data=b"{")
        assert reply.status == 400
        assert reply.error["type"] == "invalid_request_error"
        assert (await api.post(CHAT_PATH, CHAT)).status == 200
