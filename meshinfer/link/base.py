"""One authenticated conversation with one PC, whatever carries it.

`peer` comes from the peer's key at the handshake; no message may claim a sender.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from meshinfer.core.fleet import Address
from meshinfer.core.ids import NodeId


@dataclass(frozen=True, slots=True)
class Received:
    """A message of the registry and its raw payload (a view that stays valid)."""

    message: Any
    payload: memoryview


class Link(Protocol):
    """One reader, one writer. Both sides may send at any time."""

    @property
    def peer(self) -> NodeId: ...

    @property
    def address(self) -> Address:
        """Where the other side was seen; for logs, never for decisions about trust."""
        ...

    async def send(self, message: object, payload: bytes | bytearray | memoryview = b"") -> None:
        """Return when the bytes are handed to the system; a slow peer is back-pressure here.

        Raises PeerLost when the link is closed.
        """
        ...

    async def receive(self) -> Received:
        """The next message. Raises PeerLost when the link is closed, ProtocolViolation (and closes)
        for anything that is not a welcome message within its limits."""
        ...

    async def close(self, reason: str = "") -> None:
        """Idempotent; never raises."""
        ...


class Dialer(Protocol):
    async def dial(self, address: Address, channel: str, expect: NodeId | None) -> Link:
        """A link on `channel` to whoever answers at `address`, who must be `expect` if given.

        Raises PeerLost (nobody answers in time), TrustRefused (not of this fleet or not `expect`).
        """
        ...


MESH = "mesh"  # heartbeats, elections, plans, forwarded requests
RING = "ring"  # steps and activations
TRANSFER = "transfer"  # pieces of stages
CHANNELS = (MESH, RING, TRANSFER)
