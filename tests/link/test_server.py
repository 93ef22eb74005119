"""The door of an agent: members get in, everybody else is turned away, seen and survived."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from meshinfer.core.fleet import Address, Refusal
from meshinfer.errors import MeshInferError, PeerLost, TrustRefused, UsageError
from meshinfer.link.base import MESH, TRANSFER, Link
from meshinfer.link.dialer import WebSocketDialer
from meshinfer.link.gate import Gate, ServerLimits
from meshinfer.link.server import Handler, LinkServer
from meshinfer.link.trust import Trust
from meshinfer.wire.membership import Goodbye
from tests.link.conftest import Fleets

LOOPBACK = Address("127.0.0.1", 0)
PATIENCE_S = 20.0
HASTY = ServerLimits(half_open_per_host=3, half_open=4, handshake_s=0.2, upgrade_s=0.2, drain_s=0.2)


async def echo(link: Link) -> None:
    while True:
        received = await link.receive()
        await link.send(received.message)


@dataclass
class Door:
    """A running server and what it refused."""

    address: Address
    refusals: asyncio.Queue[Refusal] = field(default_factory=asyncio.Queue)

    async def refusal(self) -> Refusal:
        async with asyncio.timeout(PATIENCE_S):
            return await self.refusals.get()


@asynccontextmanager
async def door(
    trust: Trust, handler: Handler = echo, limits: ServerLimits | None = None
) -> AsyncIterator[Door]:
    found = Door(LOOPBACK)
    handlers = {MESH: handler, TRANSFER: handler}
    server = LinkServer(trust, handlers, found.refusals.put_nowait, limits or ServerLimits())
    found.address = await server.start(LOOPBACK)
    try:
        yield found
    finally:
        async with asyncio.timeout(PATIENCE_S):
            await server.close()


async def still_serves(fleets: Fleets, address: Address) -> bool:
    async with WebSocketDialer(Trust(fleets.member)) as dialer:
        link = await dialer.dial(address, MESH, fleets.founder.node)
        await link.send(Goodbye("x"))
        received = await link.receive()
        await link.close()
    return bool(received.message == Goodbye("x"))


async def read_to_end(reader: asyncio.StreamReader) -> bytes:
    """What the door said until it hung up; a reset is a way of hanging up."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await reader.read()
    except ConnectionResetError:
        return b""


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET /mesh HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\n\r\n",
        b"\x80\x04\x95\x1a\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94.",
        b"!!python/object/apply:os.system ['touch marker']\n",
        b"\x93NUMPY\x01\x00v\x00{'descr': '|O', 'shape': (1,), }",
        bytes(range(256)) * 64,
        b"\x16\x03\x01\x02\x00\x01" + b"\xff" * 511,
    ],
    ids=["http", "pickle", "yaml", "npy", "bytes", "broken hello"],
)
async def test_garbage_is_refused_reported_and_survived(fleets: Fleets, garbage: bytes) -> None:
    async with door(Trust(fleets.founder)) as opened:
        reader, writer = await asyncio.open_connection("127.0.0.1", opened.address.port)
        host, port = writer.get_extra_info("sockname")
        writer.write(garbage)
        said = await read_to_end(reader)
        writer.close()
        refusal = await opened.refusal()
        assert refusal.address == f"{host}:{port}"
        assert "meshinfer agent" in refusal.reason or "handshake failed" in refusal.reason
        assert refusal.at > 1.7e9
        assert b"HTTP" not in said
        assert await still_serves(fleets, opened.address)


@pytest.mark.slow
async def test_a_slow_stranger_is_cut_off(fleets: Fleets) -> None:
    async with door(Trust(fleets.founder), limits=HASTY) as opened:
        reader, writer = await asyncio.open_connection("127.0.0.1", opened.address.port)
        writer.write(b"\x16\x03\x01")  # the beginning of a TLS hello, and no more
        assert await read_to_end(reader) == b""
        assert "in time" in (await opened.refusal()).reason
        writer.close()


async def test_strangers_who_leave_are_counted_out_again(fleets: Fleets) -> None:
    async with door(Trust(fleets.founder), limits=HASTY) as opened:
        for _ in range(3 * HASTY.half_open):
            _, writer = await asyncio.open_connection("127.0.0.1", opened.address.port)
            writer.close()
            await opened.refusal()
        assert await still_serves(fleets, opened.address)


async def test_too_many_half_open_connections_are_turned_away(fleets: Fleets) -> None:
    patient = ServerLimits(half_open_per_host=2)
    async with door(Trust(fleets.founder), limits=patient) as opened:
        streams = [
            await asyncio.open_connection("127.0.0.1", opened.address.port) for _ in range(3)
        ]
        assert "2 unfinished connections" in (await opened.refusal()).reason
        assert await read_to_end(streams[2][0]) == b""
        for _, writer in streams:
            writer.close()
        for _ in range(2):
            await opened.refusal()
        assert await still_serves(fleets, opened.address)


def test_the_gate_counts_by_host_and_in_total() -> None:
    gate = Gate(ServerLimits(half_open_per_host=1, half_open=2))
    assert gate.enter("a") is None
    assert gate.enter("a") == "it has 1 unfinished connections already"
    assert gate.enter("b") is None
    assert gate.enter("c") == "2 connections are unfinished already"
    gate.leave("a")
    assert gate.enter("c") is None


async def test_another_fleet_learns_nothing_and_both_sides_are_told(fleets: Fleets) -> None:
    async with (
        door(Trust(fleets.founder)) as opened,
        WebSocketDialer(Trust(fleets.stranger)) as dialer,
    ):
        with pytest.raises(TrustRefused, match="belongs to another fleet") as caught:
            await dialer.dial(opened.address, MESH, None)
        assert str(opened.address) in caught.value.cause
        assert "another fleet" in (await opened.refusal()).reason


async def test_a_client_without_certificate_cannot_ask_anything(fleets: Fleets) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    async with door(Trust(fleets.founder)) as opened:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", opened.address.port, ssl=context
        )
        writer.write(b"GET /mesh HTTP/1.1\r\nHost: x\r\n\r\n")
        try:
            said = await read_to_end(reader)
        except ssl.SSLError:
            said = b""
        assert said == b""
        assert "no certificate" in (await opened.refusal()).reason
        writer.close()


@asynccontextmanager
async def member_stream(
    fleets: Fleets, address: Address
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    context = Trust(fleets.member).client_context(None)
    reader, writer = await asyncio.open_connection("127.0.0.1", address.port, ssl=context)
    yield reader, writer
    writer.transport.abort()


@pytest.mark.parametrize(
    "request_line",
    ["GET / ", "GET /ring ", "GET /mesh ", "POST /mesh ", "DELETE /mesh ", "GET /mesh/../state "],
)
async def test_a_member_who_asks_for_anything_else_gets_an_empty_404(
    fleets: Fleets, request_line: str
) -> None:
    async with (
        door(Trust(fleets.founder)) as opened,
        member_stream(fleets, opened.address) as (reader, writer),
    ):
        writer.write(f"{request_line}HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        head, _, body = (await read_to_end(reader)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 404")
        assert body == b""
        assert b"aiohttp" not in head
        assert b"Python" not in head


@pytest.mark.slow
@pytest.mark.parametrize("said", [b"", b"GET /mesh HTTP/1.1\r\nHost:"])
async def test_a_member_who_asks_for_nothing_is_cut_off(fleets: Fleets, said: bytes) -> None:
    async with (
        door(Trust(fleets.founder), limits=HASTY) as opened,
        member_stream(fleets, opened.address) as (reader, writer),
    ):
        writer.write(said)
        assert await read_to_end(reader) == b""
        assert "asked for no channel" in (await opened.refusal()).reason


async def test_a_revoked_member_is_told_and_reported(fleets: Fleets) -> None:
    trust = Trust(fleets.founder, refuses=lambda node: node == fleets.member.node)
    async with door(trust) as opened, WebSocketDialer(Trust(fleets.member)) as dialer:
        with pytest.raises(TrustRefused, match="refuses this PC: .* was revoked"):
            await dialer.dial(opened.address, MESH, None)
        assert "was revoked" in (await opened.refusal()).reason


async def test_a_handler_that_returns_closes_its_link(fleets: Fleets) -> None:
    async def goodbye(link: Link) -> None:
        await link.send(Goodbye("that was all"))

    async with (
        door(Trust(fleets.founder), goodbye) as opened,
        WebSocketDialer(Trust(fleets.member)) as dialer,
    ):
        link = await dialer.dial(opened.address, MESH, None)
        assert (await link.receive()).message == Goodbye("that was all")
        with pytest.raises(PeerLost, match="its handler is done"):
            await link.receive()


@pytest.mark.parametrize("error", [RuntimeError("bug"), MeshInferError("cause")])
async def test_a_handler_that_raises_closes_its_link_and_not_the_server(
    fleets: Fleets, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def broken(link: Link) -> None:
        if (await link.receive()).message == Goodbye("break"):
            raise error
        await link.send(Goodbye("x"))

    async with (
        door(Trust(fleets.founder), broken) as opened,
        WebSocketDialer(Trust(fleets.member)) as dialer,
    ):
        link = await dialer.dial(opened.address, MESH, None)
        await link.send(Goodbye("break"))
        with pytest.raises(PeerLost):
            await link.receive()
        assert await still_serves(fleets, opened.address)
    assert str(error) in caplog.text


async def test_no_secret_reaches_the_log(fleets: Fleets, caplog: pytest.LogCaptureFixture) -> None:
    """S06: at the most talkative level, through a success, two refusals and a bug."""
    caplog.set_level(logging.DEBUG)
    code = fleets.founder.code
    assert code is not None
    async with door(Trust(fleets.founder)) as opened:
        assert await still_serves(fleets, opened.address)
        async with WebSocketDialer(Trust(fleets.stranger)) as dialer:
            with pytest.raises(TrustRefused):
                await dialer.dial(opened.address, MESH, None)
        logging.getLogger("meshinfer.test").debug("%s %r", fleets.founder, code)
        await opened.refusal()
    assert caplog.text
    assert code.reveal().removeprefix("mi1-") not in caplog.text
    assert "PRIVATE KEY" not in caplog.text


async def test_closing_ends_links_and_waits_for_their_handlers(fleets: Fleets) -> None:
    ended = asyncio.Event()

    async def tidy(link: Link) -> None:
        try:
            await link.receive()
        finally:
            ended.set()

    server = LinkServer(Trust(fleets.founder), {MESH: tidy}, lambda refusal: None)
    address = await server.start(LOOPBACK)
    async with WebSocketDialer(Trust(fleets.member)) as dialer:
        link = await dialer.dial(address, MESH, None)
        waiting = asyncio.ensure_future(link.receive())
        await asyncio.sleep(0)
        await server.close()
        assert ended.is_set()
        with pytest.raises(PeerLost, match="it stops"):
            await waiting
        with pytest.raises(PeerLost, match="Nobody answers"):
            await dialer.dial(address, MESH, None)
    await server.close()


@pytest.mark.slow
async def test_a_handler_that_hangs_is_cancelled(fleets: Fleets) -> None:
    cancelled = asyncio.Event()

    async def hang(link: Link) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with (
        door(Trust(fleets.founder), hang, HASTY) as opened,
        WebSocketDialer(Trust(fleets.member)) as dialer,
    ):
        link = await dialer.dial(opened.address, MESH, None)
        closing = asyncio.ensure_future(link.receive())
    assert cancelled.is_set()
    with pytest.raises(PeerLost):
        await closing


async def test_closing_with_a_stranger_at_the_door(fleets: Fleets) -> None:
    async with door(Trust(fleets.founder)) as opened:
        reader, writer = await asyncio.open_connection("127.0.0.1", opened.address.port)
    assert await read_to_end(reader) == b""
    writer.close()


async def test_a_taken_port_is_named_with_what_to_do(fleets: Fleets) -> None:
    async with door(Trust(fleets.founder)) as opened:
        second = LinkServer(Trust(fleets.founder), {}, lambda refusal: None)
        with pytest.raises(UsageError, match=f"Port {opened.address.port} .* taken.*--listen"):
            await second.start(opened.address)
        await second.close()


@pytest.mark.parametrize(
    ("host", "said"),
    [("192.0.2.1", "has no address 192.0.2.1"), ("no such host", "is not known here")],
)
async def test_an_address_that_is_not_ours(fleets: Fleets, host: str, said: str) -> None:
    server = LinkServer(Trust(fleets.founder), {}, lambda refusal: None)
    with pytest.raises(UsageError, match=said):
        await server.start(Address(host, 0))
    await server.close()
