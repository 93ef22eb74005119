"""Both ends of a bulk link's beginning: the same port and the same certificates as for any other,
told apart by the protocol (ALPN) that the caller offers in its first bytes.

Handshakes are done in threads, because what follows them is. A dial counts as done when the server
has said OPEN: in TLS 1.3 a client believes in its connection before the server has seen its
certificate.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket as sockets
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from meshinfer.core.fleet import Address
from meshinfer.core.ids import NodeId
from meshinfer.errors import PeerLost, TrustRefused
from meshinfer.link import client_hello
from meshinfer.link.authority import host_name
from meshinfer.link.base import TRANSFER
from meshinfer.link.bulk import END, OPEN, OWN_LIMITS, REASON_BYTES, BulkLink
from meshinfer.link.gate import ServerLimits
from meshinfer.link.refusal import handshake_reason
from meshinfer.link.tls_stream import TlsStream
from meshinfer.link.trust import BULK_PROTOCOL, Trust
from meshinfer.wire import frame

BULK_CHANNELS = (TRANSFER,)
_LOOK_AGAIN_S = 0.002


class BulkDoor:
    """The server's side. Its threads are as many as may stand at the door."""

    def __init__(self, trust: Trust, limits: ServerLimits) -> None:
        self._trust = trust
        self._limits = limits
        self._threads = ThreadPoolExecutor(limits.half_open, thread_name_prefix="door")

    async def is_meant(self, connection: sockets.socket) -> bool:
        """Whether the caller offers the bulk protocol; nothing of what it sent is taken. Raises
        OSError, TimeoutError: it says nothing."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._threads, _offers_bulk, connection, self._limits.handshake_s
        )

    async def welcome(self, connection: sockets.socket, address: Address) -> BulkLink:
        """The link with a member. Raises TrustRefused."""
        loop = asyncio.get_running_loop()
        greeting = loop.run_in_executor(self._threads, self._greet, connection)
        try:
            stream, peer = await asyncio.shield(greeting)
        except asyncio.CancelledError:
            greeting.add_done_callback(_drop)
            raise
        return BulkLink(stream, TRANSFER, peer, address)

    def close(self) -> None:
        self._threads.shutdown(wait=False)

    def _greet(self, connection: sockets.socket) -> tuple[TlsStream, NodeId]:
        connection.settimeout(self._limits.handshake_s)
        stream = TlsStream(connection, self._trust.server_context)
        try:
            stream.handshake()
            peer = self._trust.peer_id(stream.tls)
            stream.write(frame.join(OPEN, b""))
        except TrustRefused as error:
            with contextlib.suppress(OSError):
                stream.write(frame.join(END, b"", str(error).encode()[:REASON_BYTES]))
            stream.close()
            raise
        except OSError as error:
            stream.close()
            raise TrustRefused(handshake_reason(error)) from error
        return stream, peer


async def dial_bulk(
    trust: Trust, address: Address, channel: str, expect: NodeId, timeout_s: float
) -> BulkLink:
    """A link on one of BULK_CHANNELS. Raises OSError, TimeoutError, TrustRefused, PeerLost."""
    loop = asyncio.get_running_loop()
    calling = loop.run_in_executor(None, _call, trust, address, expect, timeout_s)
    try:
        stream = await asyncio.shield(calling)
    except asyncio.CancelledError:
        calling.add_done_callback(_drop)
        raise
    return BulkLink(stream, channel, expect, address)


def _call(trust: Trust, address: Address, expect: NodeId, timeout_s: float) -> TlsStream:
    raw = sockets.create_connection((address.host, address.port), timeout_s)
    stream = TlsStream(raw, trust.bulk_context, host_name(expect))
    try:
        stream.handshake()
        peer = trust.peer_id(stream.tls)
        assert peer == expect, "the host name was checked"
        _hear_open(stream, address)
    except BaseException:
        stream.close()
        raise
    return stream


def _hear_open(stream: TlsStream, address: Address) -> None:
    preamble = _read(stream, frame.PREAMBLE_BYTES)
    rest = _read(stream, frame.length(preamble, OWN_LIMITS) - len(preamble))
    said = frame.split(preamble + rest, OWN_LIMITS)
    if said.number == END:
        text = bytes(said.payload).decode(errors="replace")
        shown = "".join(character for character in text if character.isprintable())
        raise TrustRefused(f"The PC at {address} refuses this PC: {shown}")


def _read(stream: TlsStream, size: int) -> bytes:
    data = bytearray(size)
    rest = memoryview(data)
    while rest:
        count = stream.read_into(rest)
        if not count:
            raise PeerLost("The other side closed the connection at once.")
        rest = rest[count:]
    return bytes(data)


def _offers_bulk(connection: sockets.socket, patience_s: float) -> bool:
    end = time.monotonic() + patience_s
    try:
        while True:
            connection.settimeout(max(0.001, end - time.monotonic()))
            begin = connection.recv(client_hello.MOST_BYTES, sockets.MSG_PEEK)
            size = client_hello.whole_length(begin)
            if not begin or size == 0:
                return False
            if size is not None and len(begin) >= size:
                return BULK_PROTOCOL.encode() in client_hello.offered_protocols(begin[:size])
            if time.monotonic() >= end:
                raise TimeoutError
            time.sleep(_LOOK_AGAIN_S)  # what is there already would be shown again at once
    finally:
        connection.setblocking(False)


def _drop(work: asyncio.Future[Any]) -> None:
    """Whoever asked for a connection is not interested any more."""
    if work.cancelled() or work.exception() is not None:
        return
    found = work.result()
    stream: TlsStream = found[0] if isinstance(found, tuple) else found
    stream.close()
