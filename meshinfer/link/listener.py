"""A listening socket, or a sentence about why there is none."""

from __future__ import annotations

import asyncio
import errno
import os
import socket

from meshinfer.core.fleet import Address
from meshinfer.errors import UsageError

_BACKLOG = 128
# Windows reports its own numbers: WSAEACCES is a port that another program took exclusively.
_TAKEN = {errno.EADDRINUSE, 10048}
_FORBIDDEN = {errno.EACCES, 10013}
_NOT_OURS = {errno.EADDRNOTAVAIL, 10049}


async def listen(address: Address) -> socket.socket:
    """A bound, listening, non-blocking socket. Raises UsageError that says what to change."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise UsageError(
            f"The address {address.host} is not known here.",
            "Use --listen with an address of this PC, or 0.0.0.0 for all.",
        ) from error
    family, kind, protocol, _, target = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        _share_rightly(listener)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, address.host != "::")
        listener.bind(target)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise _explain(address, error) from error
    return listener


def bound_address(listener: socket.socket) -> Address:
    host, port = listener.getsockname()[:2]
    return Address(host, port)


def _share_rightly(listener: socket.socket) -> None:
    """A restart may take the port at once; a second program may not take it at all."""
    if os.name == "nt":
        # There SO_REUSEADDR would let any program steal the port.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)  # type: ignore[attr-defined,unused-ignore]
    else:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)


def _explain(address: Address, error: OSError) -> UsageError:
    if error.errno in _TAKEN:
        return UsageError(
            f"Port {address.port} on {address.host} is already taken.",
            "Stop the other program (perhaps another meshinfer), or choose a port with --listen.",
        )
    if error.errno in _FORBIDDEN:
        return UsageError(
            f"This user may not listen on port {address.port}.",
            "Choose a port above 1023 with --listen.",
        )
    if error.errno in _NOT_OURS:
        return UsageError(
            f"This PC has no address {address.host}.",
            "Use --listen with an address of this PC, or 0.0.0.0 for all.",
        )
    return UsageError(f"Cannot listen on {address}: {error.strerror}.", "See --listen.")
