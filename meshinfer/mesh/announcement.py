"""What a PC tells the LAN of itself by mDNS, and what is believed of it. Pure.

Four short entries in TXT (v, fleet, node, port), far below the 400 bytes that RFC 6763 6.2 calls
safe. Everything else is said over an authenticated link. What arrives may come from anybody: it is
checked for form, and even then it is a hint.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshinfer.core.fleet import Address
from meshinfer.core.ids import FleetId, NodeId
from meshinfer.mesh.hints import Hint, OtherFleet, PeerFound, PeerLost

SERVICE = "_meshinfer._tcp.local."
VERSION = "1"
MOST_HOSTS = 16
MOST_TRACKED = 256  # PCs, and names of other fleets
_NODE = re.compile(r"[a-z2-7]{52}")
_FLEET = re.compile(r"[0-9a-f]{20}")
_PORT = re.compile(r"[0-9]{1,5}")


@dataclass(frozen=True, slots=True)
class Announcement:
    node: NodeId
    fleet: FleetId
    addresses: tuple[Address, ...]


def instance(node: NodeId) -> str:
    """The service name: the node id makes it unique, whatever the PC is called (case J06)."""
    return f"{node}.{SERVICE}"


def text(node: NodeId, fleet: FleetId, port: int) -> dict[str, str]:
    """The TXT entries."""
    return {"v": VERSION, "fleet": fleet, "node": node, "port": str(port)}


def understood(
    name: str, entries: Mapping[bytes, bytes | None], hosts: Sequence[str]
) -> Announcement | None:
    """What `name` announces; None for anything that no agent of ours would say."""
    words = {
        key: (entries.get(key.encode()) or b"").decode("ascii", "replace")
        for key in ("v", "fleet", "node", "port")
    }
    well_formed = (
        words["v"] == VERSION
        and _NODE.fullmatch(words["node"])
        and _FLEET.fullmatch(words["fleet"])
        and _PORT.fullmatch(words["port"])
        and 0 < int(words["port"]) < 65536
        and name == instance(NodeId(words["node"]))
    )
    if not well_formed or not hosts:
        return None
    port = int(words["port"])
    addresses = tuple(Address(host, port) for host in hosts[:MOST_HOSTS])
    return Announcement(NodeId(words["node"]), FleetId(words["fleet"]), addresses)


class Sightings:
    """Who announced himself on which interface; turns that into hints, each said once."""

    def __init__(self, me: NodeId, fleet: FleetId) -> None:
        self._me = me
        self._fleet = fleet
        self._seen: dict[NodeId, dict[str, tuple[Address, ...]]] = {}
        self._others: dict[NodeId, FleetId] = {}
        self.ignored = 0  # malformed, or more than are tracked

    def other_fleets(self) -> dict[FleetId, int]:
        """How many PCs of each other fleet are on this LAN."""
        counts: dict[FleetId, int] = {}
        for fleet in self._others.values():
            counts[fleet] = counts.get(fleet, 0) + 1
        return counts

    def saw(self, interface: str, told: Announcement | None) -> Hint | None:
        if told is None:
            self.ignored += 1
            return None
        if told.node == self._me:
            return None
        if told.fleet != self._fleet:
            return self._other(told)
        if told.node not in self._seen and len(self._seen) >= MOST_TRACKED:
            self.ignored += 1
            return None
        places = self._seen.setdefault(told.node, {})
        if places.get(interface) == told.addresses:
            return None
        places[interface] = told.addresses
        everywhere = (one for addresses in places.values() for one in addresses)
        newest_first = dict.fromkeys((*told.addresses, *everywhere))
        return PeerFound(told.node, told.fleet, tuple(newest_first))

    def lost(self, interface: str, name: str) -> Hint | None:
        """An announcement ended on one interface."""
        node = NodeId(name.removesuffix(f".{SERVICE}"))
        self._others.pop(node, None)
        places = self._seen.get(node, {})
        if places.pop(interface, None) is None or places:
            return None
        del self._seen[node]
        return PeerLost(node)

    def _other(self, told: Announcement) -> Hint | None:
        if len(self._others) >= MOST_TRACKED:
            self.ignored += 1
            return None
        is_new = told.fleet not in self._others.values()
        self._others[told.node] = told.fleet
        return OtherFleet(told.fleet) if is_new else None
