"""Ports that nobody has now, each with a free one above it: agent and stage host of one PC."""

from __future__ import annotations

import socket


def free_ports(count: int) -> list[int]:
    """`count` ports p such that p and p + 1 could be bound on all interfaces just now."""
    found: list[int] = []
    held: list[socket.socket] = []
    try:
        while len(found) < count:
            first = _bound(0)
            held.append(first)
            port = int(first.getsockname()[1])
            try:
                held.append(_bound(port + 1))
            except OSError:
                continue
            found.append(port)
    finally:
        for one in held:
            one.close()
    return found


def _bound(port: int) -> socket.socket:
    one = socket.socket()
    try:
        one.bind(("0.0.0.0", port))
    except OSError:
        one.close()
        raise
    return one
