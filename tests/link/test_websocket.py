"""What only a real websocket can do wrong: raw frames, dead processes, stubborn peers."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from meshinfer.core.fleet import Address
from meshinfer.errors import PeerLost, ProtocolViolation
from meshinfer.link.base import MESH, Link
from meshinfer.link.dialer import WebSocketDialer
from meshinfer.link.server import LinkServer
from meshinfer.link.trust import Trust
from meshinfer.link.websocket import max_message_bytes
from meshinfer.wire import registry
from meshinfer.wire.membership import Goodbye
from tests.link.conftest import Fleets

PATIENCE_S = 20.0


@dataclass
class RawPeer:
    """A websocket that sends any bytes, and the link at its other end."""

    socket: aiohttp.ClientWebSocketResponse
    link: Link


@pytest.fixture
async def raw(fleets: Fleets) -> AsyncIterator[RawPeer]:
    arrived: asyncio.Queue[Link] = asyncio.Queue()
    done = asyncio.Event()

    async def hold(link: Link) -> None:
        await arrived.put(link)
        await done.wait()

    server = LinkServer(Trust(fleets.founder), {MESH: hold}, lambda refusal: None)
    address = await server.start(Address("127.0.0.1", 0))
    context = Trust(fleets.member).client_context(None)
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(f"https://{address}/mesh", ssl=context, compress=0) as stream,
    ):
        yield RawPeer(stream, await arrived.get())
        done.set()
    await server.close()


async def closes_with(raw: RawPeer, said: str) -> None:
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
        told = tasks.create_task(raw.socket.receive())
        with pytest.raises(ProtocolViolation, match=said) as caught:
            await raw.link.receive()
        assert str(raw.link.address) in caught.value.cause
    assert told.result().type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED)
    with pytest.raises(PeerLost):
        await raw.link.receive()


async def test_a_damaged_frame(raw: RawPeer) -> None:
    damaged = registry.pack(Goodbye("hello"))
    damaged[-1] ^= 1
    await raw.socket.send_bytes(bytes(damaged))
    await closes_with(raw, "wrong checksum")


async def test_zeros_in_the_place_of_a_frame(raw: RawPeer) -> None:
    """C01: a hop that delivered zeros went unnoticed elsewhere."""
    await raw.socket.send_bytes(bytes(len(registry.pack(Goodbye("hello")))))
    await closes_with(raw, "not a meshinfer frame")


async def test_a_pickle(raw: RawPeer) -> None:
    await raw.socket.send_bytes(b"\x80\x04\x95\x1a\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94.")
    await closes_with(raw, "the data is not a meshinfer frame")


async def test_a_text_message(raw: RawPeer) -> None:
    await raw.socket.send_str('{"type": "hs"}')
    await closes_with(raw, "a text message")


async def test_a_message_too_large_is_refused_when_it_announces_itself(raw: RawPeer) -> None:
    """D11: only the first kilobytes are ever sent; the refusal does not wait for the rest."""
    announced = max_message_bytes(MESH) + 1
    transport = raw.socket._writer.transport  # no public way sends half a frame
    header = b"\x82\xff" + announced.to_bytes(8, "big") + b"\x00\x00\x00\x00"
    transport.write(header + bytes(1000))
    await closes_with(raw, f"Message size {announced} exceeds limit {announced - 1}")


async def test_the_largest_message_of_a_channel_fits() -> None:
    limits = registry.welcome(MESH)
    assert max_message_bytes(MESH) == max(limit.frame for limit in limits.values())


async def test_small_messages_are_not_held_back(raw: RawPeer) -> None:
    for end in (raw.link._socket, raw.socket):  # type: ignore[attr-defined]
        kernel = end.get_extra_info("socket")
        assert kernel.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    ours = raw.link._socket.get_extra_info("socket")  # type: ignore[attr-defined]
    assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


@pytest.mark.slow
async def test_a_close_does_not_wait_for_a_peer_that_never_answers(raw: RawPeer) -> None:
    started = time.monotonic()
    await raw.link.close("enough")
    assert time.monotonic() - started < 3.0
    with pytest.raises(PeerLost, match="This PC closed the link. enough"):
        await raw.link.receive()


PEER_PROCESS = """
import asyncio, sys
from pathlib import Path
from meshinfer.core.fleet import Address
from meshinfer.link.identity import load
from meshinfer.link.server import LinkServer
from meshinfer.link.trust import Trust

async def main():
    async def hold(link):
        await asyncio.Event().wait()
    server = LinkServer(Trust(load(Path(sys.argv[1]))), {"mesh": hold}, print)
    print((await server.start(Address("127.0.0.1", 0))).port, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.slow
async def test_a_killed_process_is_noticed_at_once(fleets: Fleets, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PEER_PROCESS, str(fleets.founder.file.parent.parent)],
        stdout=subprocess.PIPE,
        text=True,
    ) as peer:
        assert peer.stdout is not None
        port = int(await asyncio.to_thread(peer.stdout.readline))
        async with WebSocketDialer(Trust(fleets.member)) as dialer:
            link = await dialer.dial(Address("127.0.0.1", port), MESH, fleets.founder.node)
            waiting = asyncio.ensure_future(link.receive())
            await asyncio.sleep(0)
            peer.kill()
            killed = time.monotonic()
            with pytest.raises(PeerLost, match=fleets.founder.node[:8]):
                await waiting
            assert time.monotonic() - killed < 1.0
            await link.close()
