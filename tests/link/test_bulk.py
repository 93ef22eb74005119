"""What a bulk link does beyond the contract of all links (tests/contracts/test_link.py)."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator

import pytest

from meshinfer.core.fleet import Address
from meshinfer.core.ids import Digest
from meshinfer.errors import PeerLost, ProtocolViolation
from meshinfer.link.authority import host_name
from meshinfer.link.base import TRANSFER
from meshinfer.link.bulk import END, REASON_BYTES, BulkLink
from meshinfer.link.tls_stream import TlsStream
from meshinfer.link.trust import Trust
from meshinfer.wire import frame, registry
from meshinfer.wire.transfer import PieceData, PieceRequest
from tests.link.conftest import Fleets

PIECE = Digest("ab" * 32)
PATIENCE_S = 20.0
HERE = Address("127.0.0.1", 1)


class Ends:
    """A link, and the bare stream at its other side."""

    def __init__(self, link: BulkLink, stream: TlsStream) -> None:
        self.link = link
        self.stream = stream

    async def read(self, size: int) -> bytes:
        def fill() -> bytes:
            data = bytearray(size)
            rest = memoryview(data)
            while rest and (count := self.stream.read_into(rest)):
                rest = rest[count:]
            return bytes(data[: size - len(rest)])

        return await asyncio.to_thread(fill)


@pytest.fixture
async def ends(fleets: Fleets) -> AsyncIterator[Ends]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname(), PATIENCE_S)
        far, _ = listener.accept()
    far.settimeout(PATIENCE_S)
    client = TlsStream(near, Trust(fleets.member).bulk_context, host_name(fleets.founder.node))
    server = TlsStream(far, Trust(fleets.founder).server_context)
    await asyncio.gather(*[asyncio.to_thread(one.handshake) for one in (client, server)])
    link = BulkLink(client, TRANSFER, fleets.founder.node, HERE)
    async with asyncio.timeout(PATIENCE_S):
        yield Ends(link, server)
        server.shut(socket.SHUT_RDWR)
        await link.close()
    server.close()


async def test_the_wire_has_frames_and_nothing_else(ends: Ends) -> None:
    payload = bytes(range(256)) * 4096
    expected = bytes(registry.pack(PieceData(PIECE), payload))
    await ends.link.send(PieceData(PIECE), payload)
    assert await ends.read(len(expected)) == expected


async def test_the_last_frame_says_why(ends: Ends) -> None:
    expected = bytes(frame.join(END, b"", b"that was all"))
    closing = asyncio.ensure_future(ends.link.close("that was all"))
    assert await ends.read(len(expected) + 1) == expected  # and then the end
    await closing


async def test_a_reason_is_cut_between_characters(ends: Ends) -> None:
    closing = asyncio.ensure_future(ends.link.close("ü" * REASON_BYTES))
    preamble = await ends.read(frame.PREAMBLE_BYTES)
    said = await ends.read(frame.length(preamble, {END: frame.Limits(0, REASON_BYTES)}))
    assert said.decode() == "ü" * (REASON_BYTES // 2)
    await closing


async def test_a_frame_that_breaks_off_is_a_lost_peer(ends: Ends) -> None:
    ends.stream.write(registry.pack(PieceData(PIECE), b"x" * 1000)[:500])
    ends.stream.shut(socket.SHUT_WR)
    with pytest.raises(PeerLost):
        await ends.link.receive()


async def test_a_length_over_the_limit_is_refused_from_the_preamble(ends: Ends) -> None:
    """Nothing of it is awaited or allocated."""
    huge = frame.PREAMBLE.pack(frame.MAGIC, frame.FRAME_VERSION, 0, 50, 0, 10, (1 << 20) + 1, 0)
    ends.stream.write(huge)
    with pytest.raises(ProtocolViolation, match="announces"):
        await ends.link.receive()


async def test_a_damaged_frame_is_refused(ends: Ends) -> None:
    data = registry.pack(PieceRequest(PIECE))
    data[-1] ^= 1
    ends.stream.write(data)
    with pytest.raises(ProtocolViolation, match="checksum"):
        await ends.link.receive()


async def test_a_cable_that_is_cut_is_a_lost_peer_for_reader_and_writer(ends: Ends) -> None:
    reading = asyncio.ensure_future(ends.link.receive())
    await asyncio.sleep(0)
    ends.stream.shut(socket.SHUT_RDWR)
    with pytest.raises(PeerLost):
        await reading
    with pytest.raises(PeerLost):
        await ends.link.send(PieceRequest(PIECE))


async def test_frames_of_several_senders_do_not_mix(ends: Ends) -> None:
    """Also when one of them is cancelled in the middle."""
    payloads = [bytes([number]) * (1 << 20) for number in range(6)]
    sends = [asyncio.ensure_future(ends.link.send(PieceData(PIECE), one)) for one in payloads]
    size = len(registry.pack(PieceData(PIECE), payloads[0]))
    first = await ends.read(size)
    sends[1].cancel()
    sends[4].cancel()
    await asyncio.wait([sends[4]])
    limits = registry.welcome(TRANSFER)
    seen = [registry.unpack(first, limits)[1][0]]
    while seen[-1] != 5:
        _, payload = registry.unpack(await ends.read(size), limits)
        assert bytes(payload) == bytes([payload[0]]) * (1 << 20)
        seen.append(payload[0])
    assert [one for one in seen if one not in (1, 4)] == [0, 2, 3, 5]


async def test_payloads_stay_valid_while_more_arrive(ends: Ends) -> None:
    received = []
    for number in range(40):
        ends.stream.write(registry.pack(PieceData(PIECE), bytes([number]) * 5000))
        received.append((await ends.link.receive()).payload)
    assert [bytes(one) for one in received] == [bytes([number]) * 5000 for number in range(40)]


async def test_its_threads_end_with_it(ends: Ends) -> None:
    await ends.link.send(PieceRequest(PIECE))
    ends.stream.write(registry.pack(PieceRequest(PIECE)))
    await ends.link.receive()
    mine = [thread for thread in threading.enumerate() if "transfer-" in thread.name]
    assert len(mine) == 2
    ends.stream.shut(socket.SHUT_RDWR)
    await ends.link.close()
    for thread in mine:
        await asyncio.to_thread(thread.join, PATIENCE_S)
        assert not thread.is_alive()
    assert ends.link._stream.raw.fileno() == -1
