"""Why a PC without leader and lease does not campaign yet, and until when. Pure.

exo had candidates that waited for ever (issues 2094, 2197): here each reason has a deadline, and so
has the sum of all reasons.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from meshinfer.core.ids import Epoch, NodeId
from meshinfer.mesh.candidacy import Peer, best
from meshinfer.mesh.timing import ElectionTiming


class Reason(StrEnum):
    LONE = "nobody is there yet"
    LEADER = "somebody leads already and will ask for the lease"
    BETTER = "a better candidate is there"
    MINE = "this PC is the best candidate"


class Waiting:
    """From the moment when a PC has neither leader nor office."""

    def __init__(self, timing: ElectionTiming, now: float) -> None:
        self._timing = timing
        self._since = now
        self._reason: Reason | None = None
        self._deadline = now

    def over(self, reason: Reason, now: float, dialling: bool, jitter: float) -> bool:
        """Whether to campaign now. `jitter` in [0, 1) is used when the reason is new."""
        if reason != self._reason:
            self._reason = reason
            self._deadline = now + self._patience(reason) + jitter * self._timing.jitter_s
        if dialling and reason is Reason.LONE:
            return now - self._since >= self._timing.lone_dialling_s
        return now >= self._deadline or now - self._since >= self._timing.decide_s

    def _patience(self, reason: Reason) -> float:
        timing = self._timing
        return {
            Reason.LONE: timing.lone_s,
            Reason.LEADER: timing.await_leader_s,
            Reason.BETTER: timing.await_better_s,
            Reason.MINE: timing.settle_s,
        }[reason]


def reason_to_wait(me: tuple[NodeId, bool], alive: Sequence[Peer], newest: Epoch) -> Reason:
    """`me` is this PC and whether it holds the model."""
    if not alive:
        return Reason.LONE
    if any(peer.lease.leader not in ("", me[0]) for peer in alive):
        return Reason.LEADER
    candidates = [me, *((peer.node, peer.holds_model) for peer in alive)]
    return Reason.MINE if best(candidates, newest) == me[0] else Reason.BETTER
