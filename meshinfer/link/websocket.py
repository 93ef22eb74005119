"""A link over a websocket, either end. `link.dialer` and `link.server` make them.

Mind who dials whom: what a client sends is masked (RFC 6455), which costs a copy and an XOR, 1.8
times the time of a 4 MB frame. So the consumer of activations or pieces dials their producer.

A silent PC is found by the kernel's keepalive probes, 16 s after the last byte, not by websocket
pings: those are answered only while somebody waits in `receive`, so a producer that only sends, or
a stage that computes for long, would look dead. (Mesh links have heartbeats of their own, faster.)
"""

from __future__ import annotations

import asyncio
import logging
import socket as sockets

import aiohttp
from aiohttp import WSMsgType, web

from meshinfer.core.fleet import Address
from meshinfer.core.ids import NodeId, short
from meshinfer.errors import ProtocolViolation
from meshinfer.link.base import Received
from meshinfer.link.ending import Ending
from meshinfer.wire import registry

CLOSE_TIMEOUT_S = 2.0
# How long to wait for the other side's half of a close: long enough for it to read what was sent
# before, short because a side that only sends never answers.
CLOSE_ANSWER_S = 0.5
_KEEPALIVE_IDLE_S = 10
_KEEPALIVE_INTERVAL_S = 2
_KEEPALIVE_PROBES = 3
_REASON_BYTES = 123  # a close frame has room for 125, two of them for its code
_log = logging.getLogger(__name__)

Socket = aiohttp.ClientWebSocketResponse | web.WebSocketResponse


def max_message_bytes(channel: str) -> int:
    """The largest frame of a channel. aiohttp refuses a longer one when it announces itself."""
    return registry.largest_frame(registry.welcome(channel).values())


class WebSocketLink:
    """Implements `link.base.Link`."""

    def __init__(self, socket: Socket, channel: str, peer: NodeId, address: Address) -> None:
        self._socket = socket
        self._welcome = registry.welcome(channel)
        self._peer = peer
        self._address = address
        self._ending = Ending(channel, peer, str(address))
        raw: sockets.socket | None = socket.get_extra_info("socket")
        if raw is not None:
            tune(raw)

    @property
    def peer(self) -> NodeId:
        return self._peer

    @property
    def address(self) -> Address:
        return self._address

    async def send(self, message: object, payload: bytes | bytearray | memoryview = b"") -> None:
        """As in base. Raises ProtocolViolation for a message over its limit; the link lives on."""
        frame = registry.pack(message, payload)
        self._ending.check()
        try:
            # aiohttp declares bytes and takes any buffer; a copy here would be the second one.
            await self._socket.send_bytes(frame)  # type: ignore[arg-type]
        except (OSError, aiohttp.ClientError, RuntimeError) as error:
            raise self._ending.lost(str(error)) from error

    async def receive(self) -> Received:
        self._ending.check()
        message = await self._socket.receive()
        if message.type is WSMsgType.BINARY:
            try:
                return Received(*registry.unpack(message.data, self._welcome))
            except ProtocolViolation as error:
                raise await self._violated(error.cause) from error
        if message.type is WSMsgType.ERROR and isinstance(message.data, aiohttp.WebSocketError):
            raise await self._violated(str(message.data)) from message.data
        if message.type is WSMsgType.TEXT:
            raise await self._violated("a text message")
        # A close frame has its reason in `extra`, a broken connection its error in `data`.
        said = message.data if message.type is WSMsgType.ERROR else message.extra
        raise self._ending.lost(str(said or ""))

    async def close(self, reason: str = "") -> None:
        """As in base; takes 2 s at most, after which the connection is cut."""
        self._ending.closed_here(reason)
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._socket.close(message=_short_reason(reason))
        except (TimeoutError, OSError, aiohttp.ClientError, RuntimeError):
            self._cut()
        except asyncio.CancelledError:
            self._cut()
            raise

    async def _violated(self, cause: str) -> ProtocolViolation:
        await self.close("a message broke the rules")
        return self._ending.violation(cause)

    def _cut(self) -> None:
        """End the connection without the other side's help: it does not read what we send."""
        raw: sockets.socket | None = self._socket.get_extra_info("socket")
        if raw is None:
            return
        try:
            raw.shutdown(sockets.SHUT_RDWR)
        except OSError as error:
            _log.debug("link with %s was already cut: %s", short(self._peer), error)


def _short_reason(reason: str) -> bytes:
    """UTF-8 that fits a close frame, cut between characters."""
    return reason.encode()[:_REASON_BYTES].decode(errors="ignore").encode()


def tune(raw: sockets.socket) -> None:
    """No waiting to fill segments; probes for a PC that lost its power or its cable."""
    raw.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_NODELAY, 1)
    raw.setsockopt(sockets.SOL_SOCKET, sockets.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", _KEEPALIVE_IDLE_S),
        ("TCP_KEEPALIVE", _KEEPALIVE_IDLE_S),  # macOS's name of the same
        ("TCP_KEEPINTVL", _KEEPALIVE_INTERVAL_S),
        ("TCP_KEEPCNT", _KEEPALIVE_PROBES),
    ):
        option = getattr(sockets, name, None)
        if option is not None:
            raw.setsockopt(sockets.IPPROTO_TCP, option, value)
