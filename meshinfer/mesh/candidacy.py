"""Who should lead, and one attempt to. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from meshinfer.core.ids import NO_EPOCH, Epoch, NodeId


@dataclass(frozen=True, slots=True)
class Peer:
    """Another PC as the election sees it."""

    node: NodeId
    alive: bool  # heard lately in both directions; False: suspect
    holds_model: bool
    lease: Epoch = NO_EPOCH  # whom it follows; its own epoch when it leads
    followers: int = 0

    @property
    def leads(self) -> bool:
        return self.lease.leader == self.node


def rank(node: NodeId, holds_model: bool, newest: Epoch) -> tuple[bool, bool, NodeId]:
    """Order of candidates, the lowest first: who can lead without fetching anything, then who led
    last (its caches are warm), then the node id, so that all agree."""
    return (not holds_model, newest.leader != node, node)


def best(candidates: Iterable[tuple[NodeId, bool]], newest: Epoch) -> NodeId:
    """The (node, holds_model) that should campaign."""
    return min((rank(node, holds, newest) for node, holds in candidates))[2]


class Candidacy:
    """One campaign: from the decision until it is won, lost or withdrawn."""

    def __init__(self, epoch: Epoch) -> None:
        self.epoch = epoch
        self.asked: frozenset[NodeId] | None = None  # None until the epoch is on disk
        self.granted: set[NodeId] = set()
        self.started_at = 0.0
        self._answered: set[NodeId] = set()

    def start(self, asked: frozenset[NodeId], now: float) -> None:
        self.asked = asked
        self.started_at = now

    def grant(self, node: NodeId) -> None:
        self.granted.add(node)
        self._answered.add(node)

    def deny(self, node: NodeId) -> None:
        self._answered.add(node)

    def drop(self, node: NodeId) -> None:
        """The PC is gone: neither its answer nor its grant is waited for."""
        self.granted.discard(node)
        self._answered.add(node)

    def complete(self, now: float, patience_s: float) -> bool:
        """Whether everybody answered or the time is up."""
        if self.asked is None:
            return False
        return self.asked <= self._answered or now - self.started_at >= patience_s
