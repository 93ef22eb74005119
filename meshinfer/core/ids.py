"""Names of things. A NodeId cannot be passed where a ModelId is wanted: mypy tells them apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

NodeId = NewType("NodeId", str)
"""base32 (lower case, no padding, 52 characters) of the SHA-256 of the node's public key."""

FleetId = NewType("FleetId", str)
"""20 hex digits derived one-way from the join token: public, it names a fleet on the LAN."""

ModelId = NewType("ModelId", str)
"""What a person types and `/v1/models` lists, e.g. `smollm2-135m`."""

PlanId = NewType("PlanId", str)
"""16 hex digits; two plans never share one."""

Digest = NewType("Digest", str)
"""SHA-256 in 64 hex digits."""

RequestId = NewType("RequestId", str)

NO_NODE = NodeId("")


def short(node: NodeId) -> str:
    """The first eight characters: enough to tell PCs apart in a log or table."""
    return node[:8]


@dataclass(frozen=True, order=True, slots=True)
class Epoch:
    """One term of leadership. Ordered by counter, then by leader; never goes backwards on a PC."""

    counter: int
    leader: NodeId

    def __str__(self) -> str:
        return f"{self.counter}/{short(self.leader)}"


NO_EPOCH = Epoch(0, NO_NODE)
