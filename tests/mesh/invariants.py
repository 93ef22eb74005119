"""What must hold at every moment of a simulated fleet, whatever happens to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from meshinfer.core.ids import NO_EPOCH, Epoch, NodeId
from meshinfer.mesh.fleet_state import FleetState


class InvariantBroken(AssertionError):
    """What must never be, was. The seed is in the message of the test."""


@dataclass(slots=True)
class Pc:
    """What survives a restart: the disk and the count of starts."""

    node: NodeId
    holds_model: bool
    disk: Epoch = NO_EPOCH
    incarnation: int = 0
    state: FleetState | None = None
    paused_until: float = 0.0
    ticked_at: float = 0.0
    waiting: list[Callable[[], None]] = field(default_factory=list)
    highest_accepted: Epoch = NO_EPOCH
    dialling: set[NodeId] = field(default_factory=set)

    @property
    def running(self) -> FleetState:
        assert self.state is not None
        return self.state


class Invariants:
    """Watches `pcs`. `led`: when each epoch was first led in."""

    def __init__(self, pcs: Mapping[NodeId, Pc]) -> None:
        self.led: list[tuple[float, Epoch]] = []
        self._pcs = pcs
        self._terms: dict[Epoch, int] = {}  # which start of its leader led in it

    def check_faithful(self, pc: Pc, before: Epoch, after: Epoch, now: float) -> None:
        """A lease in force does not go to another PC while its holder leads and is heard."""
        if before.leader in ("", pc.node, after.leader) or not after.leader:
            return
        holder = self._pcs[before.leader]
        seen = pc.running.view(now).member(holder.node)
        leads = holder.state is not None and holder.state.lease(now) == before
        if leads and seen is not None and seen.state == "alive":
            raise InvariantBroken(f"{pc.node} left {before}, in force, for {after}")

    def check(self, pc: Pc, now: float) -> None:
        """After an event of `pc`."""
        state = pc.running
        if state.accepted < pc.highest_accepted:
            raise InvariantBroken(f"{pc.node} accepted {state.accepted} again")
        pc.highest_accepted = state.accepted
        if pc.disk < state.accepted:
            raise InvariantBroken(f"{pc.node} accepted {state.accepted} before it was on disk")
        lease = state.lease(now)
        if lease not in (NO_EPOCH, state.accepted):
            raise InvariantBroken(f"{pc.node} serves {lease} after it accepted {state.accepted}")
        if lease.leader == pc.node:
            self._check_term(pc, lease, now)

    def _check_term(self, pc: Pc, epoch: Epoch, now: float) -> None:
        """No start of a PC leads in an epoch of an earlier one."""
        if epoch not in self._terms:
            self._terms[epoch] = pc.incarnation
            self.led.append((now, epoch))
        if self._terms[epoch] != pc.incarnation:
            raise InvariantBroken(f"{pc.node} leads in {epoch} again after a restart")
