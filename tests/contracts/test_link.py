"""One suite for everything that calls itself a Link: in memory, and over TLS on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from meshinfer.core.fleet import Address
from meshinfer.core.ids import NO_EPOCH, PlanId
from meshinfer.errors import PeerLost, ProtocolViolation
from meshinfer.link.authority import host_name
from meshinfer.link.base import MESH, RING, Link
from meshinfer.link.bulk import BulkLink
from meshinfer.link.delayed import DelayedLink
from meshinfer.link.dialer import WebSocketDialer
from meshinfer.link.identity import found, join
from meshinfer.link.memory import memory_pair
from meshinfer.link.server import LinkServer
from meshinfer.link.tls_stream import TlsStream
from meshinfer.link.trust import Trust
from meshinfer.wire import registry, step_payload
from meshinfer.wire.forward import FleetReport
from meshinfer.wire.membership import Goodbye
from meshinfer.wire.ring import StepFrame

HIDDEN = 4096
PATIENCE_S = 20.0  # a deadline, not a wait: what hangs fails


@dataclass(frozen=True)
class Pair:
    """`client` dialled `server`; large payloads go from server to client, as in the ring."""

    client: Link
    server: Link


@asynccontextmanager
async def memory_links(folder: Path, channel: str) -> AsyncIterator[Pair]:
    client, server = memory_pair(channel)
    try:
        yield Pair(client, server)
    finally:
        await client.close()
        await server.close()


@asynccontextmanager
async def websocket_links(folder: Path, channel: str) -> AsyncIterator[Pair]:
    founder = found(folder / "a")
    assert founder.code is not None
    member = join(folder / "b", founder.code)
    arrived: asyncio.Queue[Link] = asyncio.Queue()
    done = asyncio.Event()

    async def hold(link: Link) -> None:
        await arrived.put(link)
        await done.wait()

    async with AsyncExitStack() as stack:
        server = LinkServer(Trust(founder), {channel: hold}, lambda refusal: None)
        address = await server.start(Address("127.0.0.1", 0))
        stack.push_async_callback(server.close)
        dialer = await stack.enter_async_context(WebSocketDialer(Trust(member)))
        client = await dialer.dial(address, channel, founder.node)
        stack.push_async_callback(client.close)
        stack.callback(done.set)
        yield Pair(client, await arrived.get())


@asynccontextmanager
async def bulk_links(folder: Path, channel: str) -> AsyncIterator[Pair]:
    founder = found(folder / "a")
    assert founder.code is not None
    member = join(folder / "b", founder.code)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    caller, called = Trust(member), Trust(founder)
    ends = (
        TlsStream(near, caller.bulk_context, host_name(founder.node)),
        TlsStream(far, called.server_context),
    )
    await asyncio.gather(*[asyncio.to_thread(end.handshake) for end in ends])
    here = Address("127.0.0.1", 1)
    client = BulkLink(ends[0], channel, founder.node, here)
    server = BulkLink(ends[1], channel, member.node, here)
    try:
        yield Pair(client, server)
    finally:
        await asyncio.gather(client.close(), server.close())


@asynccontextmanager
async def delayed_links(folder: Path, channel: str) -> AsyncIterator[Pair]:
    async with websocket_links(folder, channel) as inner:
        client, server = (DelayedLink(one, 0.002) for one in (inner.client, inner.server))
        try:
            yield Pair(client, server)
        finally:
            await client.close()
            await server.close()


Opener = Callable[[str], Awaitable[Pair]]


@pytest.fixture(
    params=[memory_links, websocket_links, bulk_links, delayed_links],
    ids=["memory", "websocket", "bulk", "delayed"],
)
async def opener(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Opener]:
    async with AsyncExitStack() as stack:

        async def enter(channel: str) -> Pair:
            return await stack.enter_async_context(request.param(tmp_path, channel))

        yield enter


@pytest.fixture
async def pair(opener: Opener) -> Pair:
    return await opener(MESH)


def step(tokens: int) -> StepFrame:
    return StepFrame(NO_EPOCH, PlanId("p"), 1, 1, 1, tokens, (), (), ())


def prefill(tokens: int) -> bytes:
    size = step_payload.ROW.itemsize + tokens * 4 + tokens * HIDDEN * 4
    return (b"\x01\x02\x03\x05\x07" * (size // 5 + 1))[:size]


async def test_messages_keep_their_order_and_content(pair: Pair) -> None:
    async with asyncio.timeout(PATIENCE_S):
        for number in range(200):
            await pair.client.send(Goodbye(str(number)))
        for number in range(200):
            assert (await pair.server.receive()).message == Goodbye(str(number))


async def test_both_directions_at_once(opener: Opener) -> None:
    pair = await opener(RING)
    payload = prefill(64)

    async def send_all(link: Link) -> None:
        for _ in range(8):
            await link.send(step(64), payload)

    async def receive_all(link: Link) -> None:
        for _ in range(8):
            assert (await link.receive()).payload == payload

    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
        for link in (pair.client, pair.server):
            tasks.create_task(send_all(link))
            tasks.create_task(receive_all(link))


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [255, 256, 257, 511, 512, 513, 4000])
async def test_a_prefill_of_any_size_arrives_whole(opener: Opener, tokens: int) -> None:
    """D11: aiohttp's default of 4 MiB lies between 255 and 256 tokens of width 4096 in f32."""
    pair = await opener(RING)
    payload = prefill(tokens)
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
        tasks.create_task(pair.server.send(step(tokens), payload))
        received = await pair.client.receive()
    assert received.message == step(tokens)
    assert received.payload == payload


async def test_a_payload_stays_valid_after_the_next_message(opener: Opener) -> None:
    pair = await opener(RING)
    async with asyncio.timeout(PATIENCE_S):
        await pair.server.send(step(1), b"first")
        first = await pair.client.receive()
        await pair.server.send(step(1), b"other")
        await pair.client.receive()
    assert first.payload == b"first"


async def test_a_message_over_its_limit_is_refused_by_the_sender_and_the_link_lives(
    pair: Pair,
) -> None:
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(ProtocolViolation, match="FleetReport of .* is over its limit"):
            await pair.client.send(FleetReport("x" * (300 << 10)))
        await pair.client.send(Goodbye("still here"))
        assert (await pair.server.receive()).message == Goodbye("still here")


@pytest.mark.slow
async def test_a_message_of_another_channel_closes_the_link(pair: Pair) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await pair.client.send(step(1), b"")
        with pytest.raises(ProtocolViolation, match="not expected here"):
            await pair.server.receive()
        with pytest.raises(PeerLost):
            await pair.client.receive()
        with pytest.raises(PeerLost):
            await pair.server.receive()


async def test_what_was_sent_before_a_close_still_arrives(pair: Pair) -> None:
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
        await pair.client.send(Goodbye("last words"))
        tasks.create_task(pair.client.close("leaving"))
        assert (await pair.server.receive()).message == Goodbye("last words")
        with pytest.raises(PeerLost, match="leaving"):
            await pair.server.receive()


async def test_a_reader_that_waits_is_told_of_a_close_on_either_side(pair: Pair) -> None:
    async with asyncio.timeout(PATIENCE_S):
        near, far = (asyncio.ensure_future(link.receive()) for link in (pair.client, pair.server))
        await asyncio.sleep(0)
        await pair.client.close()
        for waiting in (near, far):
            with pytest.raises(PeerLost):
                await waiting


@pytest.mark.slow
async def test_after_a_close_everything_says_peer_lost(pair: Pair) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await pair.client.close("done")
        for _ in range(7):  # aiohttp itself turns nasty at the fifth
            with pytest.raises(PeerLost):
                await pair.client.receive()
            with pytest.raises(PeerLost):
                await pair.client.send(Goodbye("x"))
        for _ in range(7):
            with pytest.raises(PeerLost):
                await pair.server.receive()
        with pytest.raises(PeerLost):
            await pair.server.send(Goodbye("x"))


async def test_close_is_idempotent_from_any_side_at_any_time(pair: Pair) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(
            pair.client.close("a"), pair.client.close("b"), pair.server.close("ü" * 200)
        )
        await pair.client.close()
        await pair.server.close()


async def test_a_cancelled_receive_loses_nothing(pair: Pair) -> None:
    async with asyncio.timeout(PATIENCE_S):
        waiting = asyncio.ensure_future(pair.server.receive())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        await pair.client.send(Goodbye("after"))
        assert (await pair.server.receive()).message == Goodbye("after")


@pytest.mark.slow
async def test_a_slow_reader_stops_the_sender(opener: Opener) -> None:
    pair = await opener(RING)
    payload = bytes(1 << 20)
    sent = 0
    progress = asyncio.Event()

    async def flood() -> None:
        nonlocal sent
        while True:
            await pair.server.send(step(64), payload)
            sent += 1
            progress.set()
            await asyncio.sleep(0)

    flooding = asyncio.ensure_future(flood())
    async with asyncio.timeout(PATIENCE_S):
        with contextlib.suppress(TimeoutError):
            while True:  # until a moment passes in which nothing could be sent
                progress.clear()
                async with asyncio.timeout(0.2):
                    await progress.wait()
        assert 0 < sent < 60, "kernel, TLS and websocket buffers hold tens of MB at most"
        for _ in range(sent + 1):
            await pair.client.receive()
    flooding.cancel()
    await asyncio.wait([flooding])


@pytest.mark.slow
async def test_a_sender_that_waits_is_freed_by_a_close(opener: Opener) -> None:
    pair = await opener(RING)

    async def flood() -> None:
        while True:
            await pair.server.send(step(64), bytes(1 << 20))

    flooding = asyncio.ensure_future(flood())
    for _ in range(400):
        await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE_S):
        await pair.client.close()
        with pytest.raises(PeerLost):
            await flooding


async def test_an_unregistered_message_is_a_bug_and_not_a_lost_peer(pair: Pair) -> None:
    with pytest.raises(KeyError):
        await pair.client.send(object())


def test_the_two_channels_of_this_suite_have_the_messages_it_uses() -> None:
    assert registry.CHANNEL_MESSAGES[MESH][5][0] is Goodbye
    assert registry.CHANNEL_MESSAGES[RING][66][0] is StepFrame
