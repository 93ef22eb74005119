"""A leader's own books: which PCs granted it their lease, and whether it still leads. Pure."""

from __future__ import annotations

from meshinfer.core.ids import Epoch, NodeId
from meshinfer.mesh.candidacy import Peer
from meshinfer.mesh.timing import ElectionTiming

_ROUNDS_KEPT = 16


class Office:
    """Leadership in one epoch, from the moment it was won until resignation or demotion.

    A grant counts from when its question was sent, not from when the answer came: the lease began
    no earlier, so a leader that gives up `demote_s` after that is gone before the lease ends.
    """

    def __init__(self, epoch: Epoch, timing: ElectionTiming, now: float) -> None:
        self.epoch = epoch
        self.successor: Epoch | None = None  # the epoch that replaces it once it is on disk
        self._timing = timing
        self._round = 0
        self._sent: dict[int, float] = {0: now}  # round -> when
        self._asked: dict[NodeId, float] = {}  # when each PC was last asked
        self._granted: dict[NodeId, float] = {}  # the PCs that it counts on

    def granted(self, node: NodeId, round_number: int) -> None:
        sent = self._sent.get(round_number)
        if sent is not None:
            self._granted[node] = max(sent, self._granted.get(node, sent))

    def drop(self, node: NodeId) -> None:
        """The PC is gone or follows somebody else: do not count on it, ask it anew."""
        self._granted.pop(node, None)
        self._asked.pop(node, None)

    def deny(self, node: NodeId) -> None:
        """The PC answered, but not with a grant."""
        self._granted.pop(node, None)

    def due(self, nodes: list[NodeId], now: float) -> list[NodeId]:
        """PCs to be asked for their lease now. Call `ask` if there are any."""
        every, asked = self._timing.renew_s, self._asked
        # not "asked.get(node, now - every)": now - (now - every) may round to less than every
        return [node for node in nodes if node not in asked or now - asked[node] >= every]

    def ask(self, nodes: list[NodeId], now: float) -> int:
        """Note that `nodes` are asked now; the number of the round."""
        self._round += 1
        self._sent[self._round] = now
        self._sent.pop(self._round - _ROUNDS_KEPT, None)
        self._asked.update(dict.fromkeys(nodes, now))
        return self._round

    def followers(self, now: float) -> frozenset[NodeId]:
        """PCs whose lease is held for certain."""
        lease_s = self._timing.lease_s
        return frozenset(node for node, at in self._granted.items() if now - at < lease_s)

    def yields_to(self, peer: Peer, holds_model: bool, now: float) -> bool:
        """A leader that would have to fetch the model gives way to a PC that holds it and is free
        to lead. Of two leaders that meet, the one with more followers stays, then the newer."""
        if not peer.alive:
            return False
        if peer.holds_model != holds_model:
            # One that follows somebody whom this PC cannot reach would never take over: to give
            # way to it again and again would be an election without end.
            return peer.holds_model and peer.lease.leader in ("", peer.node, self.epoch.leader)
        if not peer.leads:
            return False
        return (len(self.followers(now)), self.epoch) < (peer.followers, peer.lease)

    def stands(self, now: float) -> bool:
        """Whether it still leads: it counts on nobody, or somebody granted lately."""
        if not self._granted:
            return True
        return now - max(self._granted.values()) <= self._timing.demote_s

    def succeed(self, now: float) -> None:
        """Go on in `successor`; every PC has to be asked for its lease again."""
        assert self.successor is not None
        self.epoch, self.successor = self.successor, None
        self._sent = {0: now}
        self._round = 0
        self._asked = {}
        self._granted = {}
