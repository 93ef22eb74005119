"""First messages on a mesh link, both ways. Before them, nothing else is said or believed.

The dialling PC speaks first. `Hello` itself never changes, so that PCs of any two versions can read
each other's versions and say what is wrong; everything that may change is in its `body`, which is
opened only after the versions were compared.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshinfer.core.fleet import Address, Capacity
from meshinfer.core.ids import Epoch
from meshinfer.wire import codec
from meshinfer.wire.election import check_counter

LONGEST_NAME = 128  # characters of a PC's name
MOST_ADDRESSES = 32  # of one PC and one kind
MOST_DEVICES = 32


@dataclass(frozen=True, slots=True)
class Hello:
    """The versions that must fit. Frozen for ever: add fields to `Introduction` instead."""

    protocol_oldest: int
    protocol_newest: int
    software: str  # version of meshinfer
    openvino: str  # version
    body: bytes  # an encoded Introduction of the newest protocol that both sides speak

    def introduction(self) -> Introduction:
        """What the body says. Raises ProtocolViolation."""
        return codec.decode(Introduction, self.body)


@dataclass(frozen=True, slots=True)
class Introduction:
    """Who I am, in words (the id itself comes from the key), and what I know."""

    name: str
    incarnation: int  # grows with every start of the agent; a link of an older one is stale
    link: int  # drawn by the dialling PC: both sides name (and prefer) the same link by it
    epoch: Epoch  # newest that this PC knows, so that a restarted PC cannot go backwards
    lease: Epoch  # whom this PC's lease belongs to now; NO_EPOCH: to nobody
    agent_addresses: tuple[Address, ...]
    ring_addresses: tuple[Address, ...]
    capacity: Capacity
    holds_model: bool

    def __post_init__(self) -> None:
        check_counter(self.epoch)
        check_counter(self.lease)
        if min(self.incarnation, self.link) < 0:
            raise ValueError("a negative number")
        if len(self.name) > LONGEST_NAME or not self.name.isprintable():
            raise ValueError("a name that is too long or cannot be printed")
        if max(len(self.agent_addresses), len(self.ring_addresses)) > MOST_ADDRESSES:
            raise ValueError("too many addresses")
        if len(self.capacity.devices) > MOST_DEVICES:
            raise ValueError("too many devices")


@dataclass(frozen=True, slots=True)
class Refused:
    """Why the link is about to be closed."""

    code: str
    cause: str
