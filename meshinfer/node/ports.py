"""The fixed ports of an agent: one for other PCs, the next for its stage hosts, one for clients.

A port that a person asked for is used or refused. A default steps aside when another agent of this
PC has it, so that three agents can be started by hand without a word about ports.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable

from meshinfer.core.fleet import Address
from meshinfer.errors import UsageError
from meshinfer.node.settings import AGENT_PORT, API_PORT, PORT_ATTEMPTS, Settings


def is_free(address: Address) -> bool:
    """Nobody listens there now. Raises UsageError when the address is not one of this PC."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address.host, address.port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE or isinstance(error, PermissionError):
                return False
            raise UsageError(
                f"{address} is not an address of this PC ({error.strerror}).",
                "Give one of its own, or 0.0.0.0 for all.",
            ) from error
    return True


def choose_ports(
    settings: Settings, free: Callable[[Address], bool] = is_free
) -> tuple[Address, Address, Address]:
    """Agent, stage hosts, API. Raises UsageError that names the port which is taken."""
    agent = _agent_port(settings, free)
    api = _api_port(settings, free)
    return (
        Address(settings.listen_host, agent),
        Address(settings.listen_host, agent + 1),
        Address(settings.api_host, api),
    )


def _agent_port(settings: Settings, free: Callable[[Address], bool]) -> int:
    host = settings.listen_host
    if settings.listen_port is not None:
        for port in (settings.listen_port, settings.listen_port + 1):
            if not free(Address(host, port)):
                raise _taken(Address(host, port), "--listen")
        return settings.listen_port
    for port in range(AGENT_PORT, AGENT_PORT + 2 * PORT_ATTEMPTS, 2):
        if free(Address(host, port)) and free(Address(host, port + 1)):
            return port
    raise _taken(Address(host, AGENT_PORT), "--listen")


def _api_port(settings: Settings, free: Callable[[Address], bool]) -> int:
    host = settings.api_host
    if settings.api_port is not None:
        if settings.api_port and not free(Address(host, settings.api_port)):
            raise _taken(Address(host, settings.api_port), "--api")
        return settings.api_port
    for port in range(API_PORT, API_PORT + PORT_ATTEMPTS):
        if free(Address(host, port)):
            return port
    raise _taken(Address(host, API_PORT), "--api")


def _taken(address: Address, flag: str) -> UsageError:
    return UsageError(
        f"Port {address.port} is taken by another program.",
        f"Stop that program or choose another port with {flag} {address.host}:PORT.",
    )
