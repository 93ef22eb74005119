"""First messages on a mesh link, both ways. Before them, nothing else is said or believed."""

from __future__ import annotations

from dataclasses import dataclass

from meshinfer.core.fleet import Address, Capacity
from meshinfer.core.ids import Epoch


@dataclass(frozen=True, slots=True)
class Hello:
    """Who I am, in words (the id itself comes from the key), and what I know."""

    protocol_oldest: int
    protocol_newest: int
    software: str  # version of meshinfer
    name: str
    incarnation: int  # grows with every start of the agent; a link of an older one is stale
    epoch: Epoch  # newest that this PC knows, so that a restarted PC cannot go backwards
    agent_addresses: tuple[Address, ...]
    ring_addresses: tuple[Address, ...]
    capacity: Capacity
    holds_model: bool


@dataclass(frozen=True, slots=True)
class Refused:
    """Why the link is about to be closed."""

    code: str
    cause: str
