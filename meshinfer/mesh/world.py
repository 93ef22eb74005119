"""What the mesh is told: who this PC is, and the doors to clock, disk and chance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Protocol

from meshinfer.core.fleet import Address, Capacity
from meshinfer.core.ids import Epoch, NodeId


@dataclass(frozen=True, slots=True)
class Me:
    """This PC in its fleet."""

    node: NodeId
    name: str  # for people
    incarnation: int  # greater than at any earlier start
    agent_addresses: tuple[Address, ...]  # candidates, best first
    ring_addresses: tuple[Address, ...]
    software: str  # version of meshinfer


class EpochStore(Protocol):
    """The newest epoch, across restarts. Both methods block: they run in a thread."""

    def load(self) -> Epoch:
        """NO_EPOCH when nothing was saved."""
        ...

    def save(self, epoch: Epoch) -> None:
        """On disk when this returns; an older epoch than the saved one changes nothing.

        Raises DiskFull when it cannot be written.
        """
        ...


class KnownPeers(Protocol):
    """Where PCs were reached lately. `load` and `save` block: they run in a thread."""

    def load(self) -> dict[NodeId, tuple[Address, ...]]: ...

    def save(self, known: dict[NodeId, tuple[Address, ...]]) -> None:
        """The last ones of `known` are the newest."""
        ...


@dataclass(frozen=True, slots=True)
class World:
    """`clock` is the clock of the running event loop (`time.monotonic` unless a test turns it).

    `capacity` and `holds_model` are asked once a second on the event loop: they answer from memory.
    `next_incarnation` may block; it is asked after the PC slept.
    """

    clock: Callable[[], float]
    wall_clock: Callable[[], float]
    random: Random
    epochs: EpochStore
    known_peers: KnownPeers
    capacity: Callable[[], Capacity]
    holds_model: Callable[[], bool]
    next_incarnation: Callable[[], int]
