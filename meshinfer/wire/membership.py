"""Heartbeats and what PCs tell each other about PCs."""

from __future__ import annotations

from dataclasses import dataclass

from meshinfer.core.fleet import Address, Capacity
from meshinfer.core.ids import Epoch, NodeId
from meshinfer.wire.election import check_counter

MOST_PEERS = 64  # in one Peers message


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Once a second on every link, and at once when `lease` changes."""

    sequence: int
    seen: int  # newest sequence received from the other side: a one-way cut shows here
    epoch: Epoch  # newest that the sender knows
    lease: Epoch  # whom the sender's lease belongs to; its own epoch while it leads
    followers: int  # PCs whose leases the sender holds, itself not counted; 0 unless it leads
    capacity: Capacity
    holds_model: bool

    def __post_init__(self) -> None:
        check_counter(self.epoch)
        check_counter(self.lease)
        if min(self.sequence, self.seen, self.followers) < 0:
            raise ValueError("a negative count")


@dataclass(frozen=True, slots=True)
class Superseded:
    """The sender says nothing more on this link: another one joins the two PCs.

    Each side says so and reads on until the other has said it too; so nothing is lost and nothing
    overtakes when two links of one pair become one.
    """


@dataclass(frozen=True, slots=True)
class KnownPeer:
    node: NodeId
    addresses: tuple[Address, ...]


@dataclass(frozen=True, slots=True)
class Peers:
    """Hints where others may be dialled; never a statement that they live."""

    known: tuple[KnownPeer, ...]

    def __post_init__(self) -> None:
        if len(self.known) > MOST_PEERS:
            raise ValueError("too many peers")


@dataclass(frozen=True, slots=True)
class Goodbye:
    """The sender leaves on purpose: no need to wait for a timeout."""

    reason: str
