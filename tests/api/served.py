"""A real API server on loopback and clients for it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from meshinfer.api.exposition import Metrics
from meshinfer.api.server import ApiOptions, ApiServer
from meshinfer.core.fleet import Address
from meshinfer.core.request import Door
from tests.api.scripted_door import MODEL

CREATED = 1_800_000_000
CHAT: dict[str, Any] = {"model": MODEL.model, "messages": [{"role": "user", "content": "hi"}]}
TEXT: dict[str, Any] = {"model": MODEL.model, "prompt": "hi"}
CHAT_PATH = "/v1/chat/completions"
TEXT_PATH = "/v1/completions"
LOOPBACK = Address("127.0.0.1", 0)
STATUS: dict[str, object] = {"node": {"name": "anna"}}
OPTIONS = ApiOptions(key=None, drain_s=0.05)

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The envelope's content; fails when the envelope has another shape."""
        error: dict[str, Any] = self.document["error"]
        assert set(self.document) == {"error"}
        assert set(error) == {"message", "type", "param", "code"}
        assert isinstance(error["message"], str)
        assert error["message"]
        return error


class Served:
    """One running server."""

    def __init__(self, server: ApiServer, address: Address, session: aiohttp.ClientSession) -> None:
        self.server = server
        self.address = address
        self.url = f"http://{address}"
        self._session = session

    async def ask(self, method: str, path: str, **more: Any) -> Reply:
        async with self._session.request(method, self.url + path, **more) as response:
            return Reply(response.status, response.headers, await response.read())

    async def get(self, path: str, **more: Any) -> Reply:
        return await self.ask("GET", path, **more)

    async def post(self, path: str, body: object, **more: Any) -> Reply:
        return await self.ask("POST", path, json=body, **more)

    async def events(self, path: str, body: dict[str, Any]) -> list[str]:
        """Blocks of a stream, without the empty line between them."""
        reply = await self.post(path, body | {"stream": True})
        assert reply.status == 200, reply.body
        text = reply.body.decode("ascii")
        assert text.endswith("\n\n")
        return text.removesuffix("\n\n").split("\n\n")

    @asynccontextmanager
    async def raw(self, data: bytes) -> AsyncIterator[Connection]:
        """A plain connection on which `data` was sent."""
        reader, writer = await asyncio.open_connection(self.address.host, self.address.port)
        try:
            writer.write(data)
            await writer.drain()
            yield reader, writer
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    def raw_post(self, path: str, body: object) -> AbstractAsyncContextManager[Connection]:
        """A plain connection on which one request was sent."""
        return self.raw(self.post_bytes(path, body))

    def post_bytes(self, path: str, body: object) -> bytes:
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: {self.address}\r\nContent-Length: {len(data)}"
        return head.encode() + b"\r\n\r\n" + data


@asynccontextmanager
async def served(
    door: Door,
    options: ApiOptions = OPTIONS,
    address: Address = LOOPBACK,
    timer: Callable[[], float] = lambda: 0.0,
    metrics: Metrics | None = None,
) -> AsyncIterator[Served]:
    numbers = itertools.count(1)
    server = ApiServer(
        door, lambda: STATUS, options, lambda _: next(numbers), lambda: CREATED, timer, metrics
    )
    bound = await server.start(address)
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session:
            yield Served(server, bound, session)
    finally:
        await server.close()


def chunks(events: list[str]) -> list[dict[str, Any]]:
    """Documents of the data lines, without [DONE]."""
    found = [one.removeprefix("data: ") for one in events if one.startswith("data: ")]
    return [json.loads(one) for one in found if one != "[DONE]"]


async def read_until(reader: asyncio.StreamReader, mark: bytes) -> bytes:
    async with asyncio.timeout(1):
        return await reader.readuntil(mark)
