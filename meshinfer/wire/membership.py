"""Heartbeats and what PCs tell each other about PCs."""

from __future__ import annotations

from dataclasses import dataclass

from meshinfer.core.fleet import Address, Capacity
from meshinfer.core.ids import Epoch, NodeId


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Once a second on every link. The answer is the other side's own heartbeat."""

    sequence: int
    seen: int  # newest sequence received from the other side: a one-way cut shows here
    epoch: Epoch
    capacity: Capacity
    holds_model: bool
    leading: bool  # the sender holds the lease of `epoch` as far as it knows


@dataclass(frozen=True, slots=True)
class KnownPeer:
    node: NodeId
    addresses: tuple[Address, ...]


@dataclass(frozen=True, slots=True)
class Peers:
    """Hints where others may be dialled; never a statement that they live."""

    known: tuple[KnownPeer, ...]


@dataclass(frozen=True, slots=True)
class Goodbye:
    """The sender leaves on purpose: no need to wait for a timeout."""

    reason: str
