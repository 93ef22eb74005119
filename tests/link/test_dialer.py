"""Dialling: every way in which it can fail has its own words."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from meshinfer.core.fleet import Address
from meshinfer.errors import PeerLost, TrustRefused
from meshinfer.link.base import MESH, RING, Link
from meshinfer.link.dialer import WebSocketDialer
from meshinfer.link.server import LinkServer
from meshinfer.link.trust import Trust
from tests.link.conftest import Fleets

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listener(talk: Talk, context: ssl.SSLContext | None = None) -> AsyncIterator[Address]:
    """A server of our own making at a port of its own."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await talk(reader, writer)
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        yield Address("127.0.0.1", server.sockets[0].getsockname()[1])


def answer(text: bytes) -> Talk:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(text)
        await writer.drain()

    return talk


async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(10)


async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def speak_plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"220 mail.example ESMTP\r\n")
    await reader.read(1000)


async def test_nobody_listens(fleets: Fleets) -> None:
    async with listener(hang_up) as address:
        pass
    async with WebSocketDialer(Trust(fleets.member)) as dialer:
        with pytest.raises(PeerLost, match=f"Nobody answers at {address}: "):
            await dialer.dial(address, MESH, None)


@pytest.mark.slow
async def test_silence_takes_three_seconds_and_no_more(fleets: Fleets) -> None:
    async with listener(say_nothing) as address, WebSocketDialer(Trust(fleets.member)) as dialer:
        with pytest.raises(PeerLost, match=f"Nobody answered at {address} in 3 s"):
            await dialer.dial(address, MESH, None)


async def test_another_program_answers(fleets: Fleets) -> None:
    async with listener(speak_plain) as address, WebSocketDialer(Trust(fleets.member)) as dialer:
        with pytest.raises(TrustRefused, match="does not speak TLS: not a meshinfer agent"):
            await dialer.dial(address, MESH, None)


async def test_it_hangs_up_during_tls(fleets: Fleets) -> None:
    async with listener(hang_up) as address, WebSocketDialer(Trust(fleets.member)) as dialer:
        with pytest.raises(PeerLost, match=str(address)):
            await dialer.dial(address, MESH, None)


async def test_it_hangs_up_after_tls(fleets: Fleets) -> None:
    context = Trust(fleets.founder).server_context
    async with (
        listener(hang_up, context) as address,
        WebSocketDialer(Trust(fleets.member)) as dialer,
    ):
        with pytest.raises(PeerLost, match=str(address)):
            await dialer.dial(address, MESH, None)


@pytest.mark.parametrize(
    ("response", "kind", "said"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", PeerLost, "has no mesh channel"),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", PeerLost, "is stopping"),
        (
            b"HTTP/1.1 403 No\r\nContent-Length: 11\r\n\r\nbad\x1b[31mred",
            TrustRefused,
            r"refuses this PC: bad\[31mred",
        ),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", PeerLost, "it answered 200"),
        (b"nonsense\r\n\r\n", PeerLost, "Nobody answers"),
        (b"HTTP/1.1 101 X\r\nUpgrade: websocket\r\n\r\n", PeerLost, "Nobody answers"),
    ],
    ids=["404", "503", "403", "200", "nonsense", "101 without a key"],
)
async def test_a_member_that_gives_no_websocket(
    fleets: Fleets, response: bytes, kind: type[Exception], said: str
) -> None:
    context = Trust(fleets.founder).server_context
    async with (
        listener(answer(response), context) as address,
        WebSocketDialer(Trust(fleets.member)) as dialer,
    ):
        with pytest.raises(kind, match=said):
            await dialer.dial(address, MESH, None)


async def test_a_redirect_is_not_followed(fleets: Fleets) -> None:
    visited = asyncio.Event()

    async def trap(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visited.set()

    context = Trust(fleets.founder).server_context
    async with listener(trap) as elsewhere:
        moved = f"HTTP/1.1 302 Moved\r\nLocation: http://{elsewhere}/\r\nContent-Length: 0\r\n\r\n"
        async with (
            listener(answer(moved.encode()), context) as address,
            WebSocketDialer(Trust(fleets.member)) as dialer,
        ):
            with pytest.raises(PeerLost, match="it answered 302"):
                await dialer.dial(address, MESH, None)
    assert not visited.is_set()


async def test_another_member_than_expected_and_another_channel(fleets: Fleets) -> None:
    async def hold(link: Link) -> None:
        await link.receive()

    server = LinkServer(Trust(fleets.founder), {MESH: hold}, lambda refusal: None)
    address = await server.start(Address("127.0.0.1", 0))
    async with WebSocketDialer(Trust(fleets.member)) as dialer:
        with pytest.raises(TrustRefused, match=f"another PC .* not {fleets.member.node[:8]}"):
            await dialer.dial(address, MESH, fleets.member.node)
        with pytest.raises(PeerLost, match="has no ring channel"):
            await dialer.dial(address, RING, fleets.founder.node)
        link = await dialer.dial(address, MESH, fleets.founder.node)
        assert link.peer == fleets.founder.node
        await link.close()
    await server.close()


async def test_a_dial_that_is_cancelled_leaves_nothing_open(fleets: Fleets) -> None:
    async with listener(say_nothing) as address, WebSocketDialer(Trust(fleets.member)) as dialer:
        dialling = asyncio.ensure_future(dialer.dial(address, MESH, None))
        for _ in range(20):
            await asyncio.sleep(0)
        dialling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await dialling


async def test_closing_twice_and_without_a_dial(fleets: Fleets) -> None:
    dialer = WebSocketDialer(Trust(fleets.member))
    await dialer.close()
    await dialer.close()
