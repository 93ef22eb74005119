"""How many strangers may stand at the door at once. Pure: counts, no sockets.

A connection is half open until its TLS handshake and its upgrade are done. Only those count here:
links of members are bounded by the size of the fleet.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """`handshake_s` bounds TLS, `upgrade_s` the time from there to a link, `drain_s` the end."""

    half_open_per_host: int = 16
    half_open: int = 64
    handshake_s: float = 5.0
    upgrade_s: float = 5.0
    drain_s: float = 3.0


class Gate:
    """Counts half-open connections by host."""

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self._hosts: Counter[str] = Counter()

    def enter(self, host: str) -> str | None:
        """Count one more, or say why not (then nothing is counted)."""
        if self._hosts[host] >= self._limits.half_open_per_host:
            return f"it has {self._hosts[host]} unfinished connections already"
        if self._hosts.total() >= self._limits.half_open:
            return f"{self._limits.half_open} connections are unfinished already"
        self._hosts[host] += 1
        return None

    def leave(self, host: str) -> None:
        self._hosts[host] -= 1
        if self._hosts[host] <= 0:
            del self._hosts[host]
