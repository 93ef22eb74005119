"""The exclusive lease that a PC grants over itself. Pure.

Every PC is the lock server of itself: at any moment its lease belongs to one epoch or to nobody,
and the epochs it accepts never go backwards, also across restarts (`accepted` is on disk before a
grant is said). That makes two leaders harmless: no PC serves both.
"""

from __future__ import annotations

from meshinfer.core.ids import NO_EPOCH, Epoch, NodeId


class NodeLease:
    """`accepted` starts as what the disk holds."""

    def __init__(self, accepted: Epoch, lease_s: float) -> None:
        self.accepted = accepted
        self._lease_s = lease_s
        self._holder = NO_EPOCH
        self._until = 0.0

    def held(self, now: float) -> Epoch:
        """The epoch it belongs to; NO_EPOCH: to nobody."""
        return self._holder if now < self._until else NO_EPOCH

    def may_grant(self, epoch: Epoch, now: float) -> bool:
        """Whether `epoch` is not older than any accepted one, and nobody else holds the lease."""
        held = self.held(now)
        free = held == NO_EPOCH or held.leader == epoch.leader
        return free and epoch.counter > 0 and epoch >= self.accepted

    def grant(self, epoch: Epoch, now: float) -> None:
        """Give or prolong. `may_grant` held, and `epoch` is on disk."""
        assert self.may_grant(epoch, now), f"lease of {self.held(now)} given to {epoch}"
        self.accepted = epoch
        self._holder = epoch
        self._until = now + self._lease_s

    def release(self, leader: NodeId) -> None:
        """The lease is free if `leader` held it: it resigned, died or started anew."""
        if self._holder.leader == leader:
            self._holder = NO_EPOCH

    def drop(self) -> None:
        """The lease is free, whoever held it."""
        self._holder = NO_EPOCH
