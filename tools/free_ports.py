"""Ports that nobody has now, each with a free one above it: agent and stage host of one PC.

They lie below the range from which systems take ports for outgoing connections (32768 and up on
Linux, 49152 on Windows): otherwise a connection may have a port in the moment when it is needed.
"""

from __future__ import annotations

import random
import socket

_LOWEST, _HIGHEST = 15000, 31000


def free_ports(count: int) -> list[int]:
    """`count` ports p such that p and p + 1 could be bound on all interfaces just now."""
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(_LOWEST, _HIGHEST, 2)
        if port not in found and _is_free(port) and _is_free(port + 1):
            found.append(port)
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as one:
        try:
            one.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True
