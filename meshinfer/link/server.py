"""The port of an agent or of a stage host: strangers are turned away, members become links.

The accept loop is ours and not aiohttp's, because a failed handshake must be seen, with the address
it came from, for `status`. A stranger learns nothing: TLS ends before a byte of HTTP
is read. A member who asks for anything but a channel gets an empty 404.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web

from meshinfer.core.fleet import Address, Refusal
from meshinfer.core.ids import short
from meshinfer.errors import MeshInferError, TrustRefused
from meshinfer.link.base import TRANSFER, Link
from meshinfer.link.bulk import BulkLink
from meshinfer.link.bulk_door import BulkDoor
from meshinfer.link.gate import Gate, ServerLimits
from meshinfer.link.listener import bound_address, listen
from meshinfer.link.refusal import handshake_reason
from meshinfer.link.trust import Trust
from meshinfer.link.websocket import (
    CLOSE_ANSWER_S,
    CLOSE_TIMEOUT_S,
    WebSocketLink,
    max_message_bytes,
)

Handler = Callable[[Link], Awaitable[None]]

_ACCEPT_PAUSE_S = 0.2  # when the system has no descriptor left; nothing but time helps
_HEADERS = {"Server": "meshinfer"}
_log = logging.getLogger(__name__)


class LinkServer:
    """One handler a channel; the link is closed when its handler returns or raises.

    `on_refused` is told of everybody who was not let in. `wall_clock` dates those (since 1970).
    """

    def __init__(
        self,
        trust: Trust,
        handlers: Mapping[str, Handler],
        on_refused: Callable[[Refusal], None],
        limits: ServerLimits = ServerLimits(),  # noqa: B008 - frozen
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._trust = trust
        self._handlers = {
            f"/{channel}": (channel, handler) for channel, handler in handlers.items()
        }
        self._on_refused = on_refused
        self._limits = limits
        self._wall_clock = wall_clock
        self._gate = Gate(limits)
        self._listener: socket.socket | None = None
        self._http: web.Server | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._opening: set[asyncio.Task[None]] = set()
        self._handling: set[asyncio.Task[None]] = set()
        self._links: set[Link] = set()
        self._bulk_door = BulkDoor(trust, limits)
        self._asked: dict[asyncio.BaseProtocol, asyncio.Event] = {}

    async def start(self, address: Address) -> Address:
        """Listen; port 0 takes any. Returns the address. Raises UsageError (port taken...)."""
        self._listener = await listen(address)
        self._http = web.Server(
            self._answer,
            access_log=None,
            keepalive_timeout=0.0,
            lingering_time=0.0,
            max_line_size=1024,
            max_field_size=1024,
        )
        self._accepting = asyncio.create_task(self._accept(self._listener))
        return bound_address(self._listener)

    async def close(self) -> None:
        """Idempotent; done within twice `drain_s`."""
        # 1. Nobody new.
        if self._accepting is not None:
            await _cancel({self._accepting})
        if self._listener is not None:
            self._listener.close()
        # 2. Whoever is still at the door goes; a task that was just made first takes its socket.
        await asyncio.sleep(0)
        await _cancel(self._opening)
        # 3. Members hear that we close; their handlers get PeerLost and return.
        closing = [asyncio.create_task(link.close("it stops")) for link in self._links]
        if closing:
            await asyncio.wait(closing)
        # 4. Handlers have a moment to finish, unless one of them is who calls us.
        waiting = self._handling - {asyncio.current_task()}
        if waiting:
            await asyncio.wait(waiting, timeout=self._limits.drain_s)
        # 5. Those who did not are cancelled, and every connection is gone.
        await _cancel(self._handling - {asyncio.current_task()})
        if self._http is not None:
            await self._http.shutdown(timeout=CLOSE_TIMEOUT_S)
            self._http = None
        self._bulk_door.close()

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, peer = await loop.sock_accept(listener)
            except OSError as error:
                _log.warning("cannot accept a connection: %s", error)
                await asyncio.sleep(_ACCEPT_PAUSE_S)
                continue
            address = Address(str(peer[0]), int(peer[1]))
            why = self._gate.enter(address.host)
            if why is not None:
                connection.close()
                self._refuse(address, why)
                continue
            task = asyncio.create_task(self._open(connection, address))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self, connection: socket.socket, address: Address) -> None:
        """From TCP to a link, or to a refusal."""
        link: BulkLink | None = None
        try:
            if await self._is_bulk(connection):
                link = await self._bulk_door.welcome(connection, address)
            else:
                await self._open_http(connection)
        except TrustRefused as error:
            self._refuse(address, error.cause)
        except Exception:  # outermost frame: whatever a stranger sent must not end the server
            _log.exception("opening a connection from %s failed", address)
        finally:
            self._gate.leave(address.host)
        if link is not None:
            task = asyncio.current_task()
            assert task is not None
            self._opening.discard(task)  # from here on it is a handler's
            await self._run(self._handlers[f"/{TRANSFER}"][1], link)

    async def _is_bulk(self, connection: socket.socket) -> bool:
        if f"/{TRANSFER}" not in self._handlers:
            return False
        try:
            return await self._bulk_door.is_meant(connection)
        except asyncio.CancelledError:
            connection.close()
            raise
        except OSError as error:
            connection.close()
            raise TrustRefused(handshake_reason(error)) from error

    async def _open_http(self, connection: socket.socket) -> None:
        assert self._http is not None
        protocol = self._http()
        asked = self._asked[protocol] = asyncio.Event()
        try:
            transport = await self._handshake(connection, protocol)
            await self._await_request(transport, asked)
        finally:
            del self._asked[protocol]

    async def _handshake(
        self, connection: socket.socket, protocol: asyncio.Protocol
    ) -> asyncio.Transport:
        try:
            transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
                lambda: protocol,
                connection,
                ssl=self._trust.server_context,
                ssl_handshake_timeout=self._limits.handshake_s,
            )
        except OSError as error:  # ssl.SSLError and timeouts are OSErrors
            raise TrustRefused(handshake_reason(error)) from error
        return transport

    async def _await_request(self, transport: asyncio.Transport, asked: asyncio.Event) -> None:
        """A member who finishes TLS and then asks for nothing does not stay."""
        try:
            async with asyncio.timeout(self._limits.upgrade_s):
                await asked.wait()
        except TimeoutError as error:
            transport.abort()
            raise TrustRefused("it asked for no channel after the TLS handshake") from error
        except asyncio.CancelledError:
            transport.abort()
            raise

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """One HTTP request of somebody whose certificate is of our fleet."""
        asked = self._asked.get(request.protocol)
        if asked is not None:
            asked.set()
        address = _address_of(request)
        try:
            peer = self._trust.peer_id(request.get_extra_info("ssl_object"))
        except TrustRefused as error:
            self._refuse(address, error.cause)
            return web.Response(status=403, text=str(error), headers=_HEADERS)
        route = self._handlers.get(request.path) if request.method == "GET" else None
        if route is None:
            return web.Response(status=404, headers=_HEADERS)
        channel, handler = route
        upgrade = web.WebSocketResponse(
            timeout=CLOSE_ANSWER_S,
            compress=False,
            max_msg_size=max_message_bytes(channel),
        )
        if not upgrade.can_prepare(request):
            return web.Response(status=404, headers=_HEADERS)
        upgrade.headers.update(_HEADERS)
        await upgrade.prepare(request)
        await self._run(handler, WebSocketLink(upgrade, channel, peer, address))
        return upgrade

    async def _run(self, handler: Handler, link: Link) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._handling.add(task)
        self._links.add(link)
        try:
            await handler(link)
        except MeshInferError as error:
            _log.info("link with %s ended: %s", short(link.peer), error)
        except Exception:  # outermost frame of a handler: its bug must not end the server
            _log.exception("the handler of a link with %s failed", short(link.peer))
        finally:
            try:
                await link.close("its handler is done")
            finally:
                self._links.discard(link)
                self._handling.discard(task)

    def _refuse(self, address: Address, reason: str) -> None:
        _log.info("refused %s: %s", address, reason)
        self._on_refused(Refusal(str(address), reason, self._wall_clock()))


def _address_of(request: web.BaseRequest) -> Address:
    name = request.get_extra_info("peername")
    return Address(str(name[0]), int(name[1])) if name else Address("unknown", 0)


async def _cancel(tasks: set[asyncio.Task[None]]) -> None:
    """Cancel and await; what they raise was already said where it happened."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
