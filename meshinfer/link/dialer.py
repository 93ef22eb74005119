"""Calling another PC: TCP, TLS and the websocket upgrade, as one step that succeeds or explains.

In TLS 1.3 a client believes in its connection before the server has seen its certificate, so a
dial counts as done only when the server has answered the upgrade.
"""

from __future__ import annotations

import asyncio
import ssl
from types import TracebackType

import aiohttp
from yarl import URL

from meshinfer.core.fleet import Address
from meshinfer.core.ids import NodeId, short
from meshinfer.errors import MeshInferError, PeerLost, TrustRefused
from meshinfer.link.authority import host_name
from meshinfer.link.base import Link
from meshinfer.link.bulk import BulkLink
from meshinfer.link.bulk_door import BULK_CHANNELS, dial_bulk
from meshinfer.link.refusal import handshake_reason, is_refusal
from meshinfer.link.trust import Trust
from meshinfer.link.websocket import (
    CLOSE_ANSWER_S,
    WebSocketLink,
    max_message_bytes,
)

DIAL_TIMEOUT_S = 3.0
_OWN_REMEDY = "Run meshinfer join CODE with the code of that fleet, if it is the right one."
_LONGEST_REASON = 1000  # characters of a refusal that are read from the other side


class _NotUpgraded(Exception):
    """The server answered, but not with a websocket."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(status)
        self.status = status
        self.text = text


class WebSocketDialer:
    """Owns one HTTP session; `close` it last, links that it made are closed by their owners."""

    def __init__(self, trust: Trust) -> None:
        self._trust = trust
        self._session: aiohttp.ClientSession | None = None

    async def dial(self, address: Address, channel: str, expect: NodeId | None) -> Link:
        """As in base, within 3 s."""
        if channel in BULK_CHANNELS and expect is not None:
            return await self._dial_bulk(address, channel, expect)
        try:
            async with asyncio.timeout(DIAL_TIMEOUT_S):
                socket = await self._upgrade(address, channel, expect)
        except TimeoutError as error:
            raise PeerLost(f"Nobody answered at {address} in {DIAL_TIMEOUT_S:g} s.") from error
        except _NotUpgraded as error:
            raise _not_upgraded(address, channel, error) from error
        except (OSError, aiohttp.ClientError, ValueError) as error:
            raise _explain(address, expect, error) from error
        try:
            peer = self._trust.peer_id(socket.get_extra_info("ssl_object"))
            if expect is not None and peer != expect:
                raise TrustRefused(f"The PC at {address} is {short(peer)}, not {short(expect)}.")
        except TrustRefused:
            await socket.close(message=b"not trusted")
            raise
        return WebSocketLink(socket, channel, peer, address)

    async def _dial_bulk(self, address: Address, channel: str, expect: NodeId) -> BulkLink:
        try:
            return await dial_bulk(self._trust, address, channel, expect, DIAL_TIMEOUT_S)
        except TimeoutError as error:
            raise PeerLost(f"Nobody answered at {address} in {DIAL_TIMEOUT_S:g} s.") from error
        except OSError as error:
            raise _explain(address, expect, error) from error

    async def close(self) -> None:
        """Idempotent."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def __aenter__(self) -> WebSocketDialer:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def _upgrade(
        self, address: Address, channel: str, expect: NodeId | None
    ) -> aiohttp.ClientWebSocketResponse:
        url = URL.build(scheme="https", host=address.host, port=address.port, path=f"/{channel}")
        return await self._own_session().ws_connect(
            url,
            ssl=self._trust.client_context(expect),
            server_hostname=None if expect is None else host_name(expect),
            max_msg_size=max_message_bytes(channel),
            timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_ANSWER_S),
            compress=0,
        )

    def _own_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, force_close=True, use_dns_cache=False),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None),
                middlewares=(_only_upgrades,),
                trust_env=False,  # no proxy between PCs of a LAN
            )
        return self._session


async def _only_upgrades(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Read the reason of a refusal; and never follow a redirect to where a member points us."""
    response = await handler(request)
    if response.status == 101:
        return response
    try:
        text = await response.content.read(_LONGEST_REASON)
    finally:
        response.close()
    raise _NotUpgraded(response.status, text.decode(errors="replace"))


def _not_upgraded(address: Address, channel: str, answer: _NotUpgraded) -> MeshInferError:
    if answer.status == 403:
        said = "".join(character for character in answer.text if character.isprintable())
        return TrustRefused(f"The PC at {address} refuses this PC: {said}")
    if answer.status == 503:
        return PeerLost(f"The PC at {address} is stopping.")
    return PeerLost(
        f"The PC at {address} has no {channel} channel (it answered {answer.status}).",
        "Check the port: agents and stage hosts have one each.",
    )


def _explain(address: Address, expect: NodeId | None, error: Exception) -> MeshInferError:
    """The one place where errors of aiohttp, ssl and the system become ours."""
    cause = _root(error)
    if is_refusal(cause):
        who = f"The PC at {address} is not trusted: {handshake_reason(cause)}"
        if isinstance(cause, ssl.SSLCertVerificationError) and cause.verify_code == 62 and expect:
            who = f"The PC at {address} is another PC of the fleet, not {short(expect)}"
        return TrustRefused(f"{who}.", _OWN_REMEDY)
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return PeerLost(f"The PC at {address} hung up before the link was made.")
    detail = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
    return PeerLost(f"Nobody answers at {address}: {detail}.")


def _root(error: BaseException) -> BaseException:
    """The system's or TLS's own error under aiohttp's."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return error.certificate_error
    if isinstance(error, aiohttp.ClientConnectorError):
        return error.os_error
    if isinstance(error, aiohttp.ClientOSError) and isinstance(error.__cause__, OSError):
        return error.__cause__
    return error
