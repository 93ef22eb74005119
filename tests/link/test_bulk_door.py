"""The transfer channel of a real port, beside the websockets: who comes in, who does not."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable

import pytest

from meshinfer.core.fleet import Address
from meshinfer.core.ids import Digest
from meshinfer.errors import PeerLost, TrustRefused
from meshinfer.link.base import MESH, RING, TRANSFER, Link
from meshinfer.link.bulk import BulkLink
from meshinfer.link.dialer import WebSocketDialer
from meshinfer.link.server import LinkServer
from meshinfer.link.trust import Trust
from meshinfer.link.websocket import WebSocketLink
from meshinfer.wire.transfer import PieceData, PieceRequest
from tests.link.conftest import Fleets
from tests.link.test_client_hello import HELLO
from tests.link.test_server import HASTY, PATIENCE_S, door, read_to_end

PIECE = Digest("ab" * 32)


async def give(link: Link) -> None:
    """Every piece that is asked for."""
    while True:
        digest = (await link.receive()).message.digest
        await link.send(PieceData(digest), b"x" * (1 << 20))


async def works(link: Link) -> bool:
    await link.send(PieceRequest(PIECE))
    received = await link.receive()
    return received.message == PieceData(PIECE) and received.payload == b"x" * (1 << 20)


async def test_a_member_gets_a_bulk_link_on_the_same_port(fleets: Fleets) -> None:
    async with (
        door(Trust(fleets.founder), give) as opened,
        WebSocketDialer(Trust(fleets.member)) as dialer,
        asyncio.timeout(PATIENCE_S),
    ):
        link = await dialer.dial(opened.address, TRANSFER, fleets.founder.node)
        assert isinstance(link, BulkLink)
        assert (link.peer, link.address) == (fleets.founder.node, opened.address)
        assert await works(link)
        other = await dialer.dial(opened.address, MESH, fleets.founder.node)
        assert isinstance(other, WebSocketLink)
        await link.close()
        await other.close()


async def test_the_server_knows_who_called(fleets: Fleets) -> None:
    seen: asyncio.Queue[Link] = asyncio.Queue()
    over = asyncio.Event()

    async def hold(link: Link) -> None:
        await seen.put(link)
        await over.wait()

    async with (
        door(Trust(fleets.founder), hold) as opened,
        WebSocketDialer(Trust(fleets.member)) as dialer,
        asyncio.timeout(PATIENCE_S),
    ):
        link = await dialer.dial(opened.address, TRANSFER, fleets.founder.node)
        assert (await seen.get()).peer == fleets.member.node
        over.set()
        with pytest.raises(PeerLost, match="its handler is done"):
            await link.receive()
        await link.close()


async def test_without_a_name_to_expect_it_is_a_websocket(fleets: Fleets) -> None:
    async with (
        door(Trust(fleets.founder), give) as opened,
        WebSocketDialer(Trust(fleets.member)) as dialer,
        asyncio.timeout(PATIENCE_S),
    ):
        link = await dialer.dial(opened.address, TRANSFER, None)
        assert isinstance(link, WebSocketLink)
        assert await works(link)
        await link.close()


async def test_a_member_of_another_fleet_is_refused_on_both_sides(fleets: Fleets) -> None:
    async with (
        door(Trust(fleets.founder), give) as opened,
        WebSocketDialer(Trust(fleets.stranger)) as dialer,
    ):
        with pytest.raises(TrustRefused, match="belongs to another fleet") as caught:
            await dialer.dial(opened.address, TRANSFER, fleets.founder.node)
        assert str(opened.address) in caught.value.cause
        assert "another fleet" in (await opened.refusal()).reason


async def test_another_pc_than_expected_is_refused(fleets: Fleets) -> None:
    async with (
        door(Trust(fleets.founder), give) as opened,
        WebSocketDialer(Trust(fleets.member)) as dialer,
    ):
        with pytest.raises(TrustRefused, match="is another PC of the fleet"):
            await dialer.dial(opened.address, TRANSFER, fleets.member.node)


async def test_a_revoked_member_is_told_and_reported(fleets: Fleets) -> None:
    trust = Trust(fleets.founder, refuses=lambda node: node == fleets.member.node)
    async with door(trust, give) as opened, WebSocketDialer(Trust(fleets.member)) as dialer:
        with pytest.raises(TrustRefused, match="refuses this PC: .* was revoked"):
            await dialer.dial(opened.address, TRANSFER, fleets.founder.node)
        assert "was revoked" in (await opened.refusal()).reason


async def test_who_shows_no_certificate_gets_nothing(fleets: Fleets) -> None:
    """Whatever it offers in its first bytes: that only decides who refuses it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["meshinfer-bulk/1"])
    async with door(Trust(fleets.founder), give) as opened:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", opened.address.port, ssl=context
        )
        try:
            said = await read_to_end(reader)
        except ssl.SSLError:
            said = b""
        assert said == b""
        assert "no certificate" in (await opened.refusal()).reason
        writer.close()


async def test_a_hello_that_comes_in_bits_is_waited_for(fleets: Fleets) -> None:
    """What was looked at is not taken: the handshake sees all of it."""
    async with (
        door(Trust(fleets.founder), give) as opened,
        asyncio.timeout(PATIENCE_S),
    ):
        relay = await asyncio.start_server(_in_bits(opened.address), "127.0.0.1", 0)
        port = relay.sockets[0].getsockname()[1]
        async with WebSocketDialer(Trust(fleets.member)) as dialer:
            link = await dialer.dial(Address("127.0.0.1", port), TRANSFER, fleets.founder.node)
            assert await works(link)
            await link.close()
        relay.close()
        await relay.wait_closed()


def _in_bits(
    target: Address,
) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(target.host, target.port)
        for _ in range(20):
            far_writer.write(await reader.readexactly(10))
            await far_writer.drain()
            await asyncio.sleep(0.001)

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            while data := await source.read(1 << 16):
                sink.write(data)
                await sink.drain()
            sink.close()

        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))

    return relay


@pytest.mark.slow
@pytest.mark.parametrize("said", [b"", HELLO[:3], HELLO[:100], HELLO])
async def test_who_says_too_little_is_cut_off(fleets: Fleets, said: bytes) -> None:
    async with door(Trust(fleets.founder), give, HASTY) as opened:
        reader, writer = await asyncio.open_connection("127.0.0.1", opened.address.port)
        writer.write(said)
        await read_to_end(reader)
        assert "in time" in (await opened.refusal()).reason
        writer.close()


async def test_a_door_that_closes_ends_bulk_links(fleets: Fleets) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def tidy(link: Link) -> None:
        began.set()
        try:
            await link.receive()
        finally:
            ended.set()

    server = LinkServer(Trust(fleets.founder), {TRANSFER: tidy}, lambda refusal: None)
    address = await server.start(Address("127.0.0.1", 0))
    async with WebSocketDialer(Trust(fleets.member)) as dialer:
        link = await dialer.dial(address, TRANSFER, fleets.founder.node)
        waiting = asyncio.ensure_future(link.receive())
        async with asyncio.timeout(PATIENCE_S):
            await began.wait()
            await server.close()
        assert ended.is_set()
        with pytest.raises(PeerLost, match="it stops"):
            await waiting
        with pytest.raises(PeerLost, match="Nobody answers"):
            await dialer.dial(address, TRANSFER, fleets.founder.node)
        await link.close()


async def test_a_stage_host_has_no_bulk_door(fleets: Fleets) -> None:
    """Its port serves the ring; what offers the bulk protocol there is answered as HTTP is."""
    server = LinkServer(Trust(fleets.founder), {RING: give}, lambda refusal: None)
    address = await server.start(Address("127.0.0.1", 0))
    async with WebSocketDialer(Trust(fleets.member)) as dialer:
        with pytest.raises(PeerLost):
            await dialer.dial(address, TRANSFER, fleets.founder.node)
    await server.close()


@pytest.mark.slow
async def test_silence_takes_three_seconds_and_no_more(fleets: Fleets) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with WebSocketDialer(Trust(fleets.member)) as dialer:
            address = Address("127.0.0.1", silent.getsockname()[1])
            with pytest.raises(PeerLost, match="in 3 s"):
                await dialer.dial(address, TRANSFER, fleets.founder.node)


async def test_a_dial_that_is_cancelled_leaves_nothing_open(fleets: Fleets) -> None:
    async with (
        door(Trust(fleets.founder), give) as opened,
        WebSocketDialer(Trust(fleets.member)) as dialer,
    ):
        dialling = asyncio.ensure_future(dialer.dial(opened.address, TRANSFER, fleets.founder.node))
        await asyncio.sleep(0)
        dialling.cancel()
        await asyncio.wait([dialling])
        assert dialling.cancelled()
        link = await dialer.dial(opened.address, TRANSFER, fleets.founder.node)
        assert await works(link)
        await link.close()
