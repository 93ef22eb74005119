"""What discovery says: where somebody may be. Never that he lives or who he is."""

from __future__ import annotations

from dataclasses import dataclass

from meshinfer.core.fleet import Address
from meshinfer.core.ids import FleetId, NodeId


@dataclass(frozen=True, slots=True)
class PeerFound:
    """A PC announces itself, for the first time or with other addresses."""

    node: NodeId
    fleet: FleetId
    addresses: tuple[Address, ...]


@dataclass(frozen=True, slots=True)
class PeerLost:
    """A PC took its announcement back, or it ran out (after up to 75 minutes)."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class OtherFleet:
    """A PC of another fleet announces itself; said once a fleet."""

    fleet: FleetId


Hint = PeerFound | PeerLost | OtherFleet
