"""One PC of a fleet, whatever carries its links and computes its stages.

Joins the mesh's conversations to the parts that hold them and owns their tasks; decides nothing.
The agent (node/agent.py) gives it TLS, mDNS and processes; tests give it their in-memory twins.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from meshinfer.core.fleet import FleetView, MemberState
from meshinfer.core.ids import Epoch, NodeId
from meshinfer.link.base import Dialer, Link
from meshinfer.mesh.runner import Mesh
from meshinfer.node.door import NodeDoor
from meshinfer.node.forward import ForwardDesk, ForwardDoor
from meshinfer.node.leader_term import LeaderTerm
from meshinfer.node.leadership import Leadership
from meshinfer.node.part_keeper import Fetch
from meshinfer.node.ring_desk import RingDesk
from meshinfer.node.seals import Seals
from meshinfer.node.stage_job import KeeperOptions
from meshinfer.node.stage_keeper import StageKeeper
from meshinfer.node.stage_runner import StageRunner
from meshinfer.node.term_tools import Library, PlanFor, TermOptions, TermTools
from meshinfer.wire.commit import (
    Activate,
    Declined,
    Load,
    LoadDraft,
    Prepare,
    Prepared,
    Retire,
    StageReport,
)
from meshinfer.wire.forward import (
    Ask,
    AskCancel,
    AskDelta,
    AskFailed,
    AskFinished,
    AskStarted,
    FleetReport,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NodeParts:
    """What differs between an agent and its twin in a test."""

    mesh: Mesh
    library: Library
    runner: StageRunner
    fetch: Fetch
    dialer: Dialer
    seals: Seals
    plan_for: PlanFor
    room: Callable[[], int]  # bytes that stages may use here now
    clock: Callable[[], float]
    keeper: KeeperOptions
    term: TermOptions = TermOptions()
    trace: Path | None = None  # where a leader writes what its steps did


class Node:
    """`run` until cancelled; meanwhile `door` takes requests and the accept handlers take links."""

    def __init__(self, parts: NodeParts) -> None:
        self._parts = parts
        self._mesh = parts.mesh
        self.ring_desk = RingDesk()
        self._forward = ForwardDoor(parts.mesh)
        self.door = NodeDoor(parts.mesh, self._forward)
        self._desk = ForwardDesk(parts.mesh, self.door.generate_here)
        self.keeper = StageKeeper(
            parts.mesh, parts.runner, parts.fetch, parts.seals, parts.room, parts.keeper
        )
        self._leadership = Leadership(parts.mesh, self.door, self._make_term)
        self._route()

    async def accept_mesh(self, link: Link) -> None:
        """Handler of the MESH channel."""
        await self._mesh.serve(link)

    async def accept_ring(self, link: Link) -> None:
        """Handler of the agent's RING channel."""
        await self.ring_desk.accept(link)

    async def run(self) -> None:
        """Owns the mesh, the keeper and the leadership. Ends by cancellation or by a bug."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._mesh.run())
                tasks.create_task(self.keeper.run())
                tasks.create_task(self._leadership.run())
                tasks.create_task(self._watch_losses())
        finally:
            await self._desk.close()

    def _make_term(self, epoch: Epoch) -> LeaderTerm:
        parts = self._parts
        tools = TermTools(
            mesh=self._mesh,
            library=parts.library,
            plan_for=parts.plan_for,
            dialer=parts.dialer,
            seal=parts.seals.seal,
            desk=self.ring_desk,
            clock=parts.clock,
            trace=parts.trace,
        )
        return LeaderTerm(epoch, tools, parts.term)

    def _route(self) -> None:
        """Which part hears which message."""
        for kind in (Prepare, Load, LoadDraft, Activate, Retire):
            self._mesh.route(kind, lambda sender, message, _: self.keeper.post(sender, message))
        for reply in (Prepared, Declined, StageReport):
            self._mesh.route(reply, lambda sender, message, _: self._reply(sender, message))
        for answer in (AskStarted, AskDelta, AskFinished, AskFailed):
            self._mesh.route(answer, lambda sender, message, _: self._forward.take(sender, message))
        self._mesh.route(Ask, lambda sender, message, _: self._desk.ask(sender, message))
        self._mesh.route(AskCancel, lambda sender, message, _: self._desk.cancel(sender, message))
        self._mesh.route(
            FleetReport, lambda sender, message, _: self.door.take_report(sender, message)
        )

    def _reply(self, sender: NodeId, message: Prepared | Declined | StageReport) -> None:
        if self.door.term is not None:
            self.door.term.post(sender, message)

    async def _watch_losses(self) -> None:
        """PCs that are gone end what was going on with them; an ended lease ends its plan."""
        living: frozenset[NodeId] = frozenset()
        async for view in self._mesh.watch():
            for node in living - alive(view):
                self._forward.lost(node)
                self._desk.lost(node)
            living = alive(view)
            if view.leader is not None:
                self._leader_changed(view)
            await self.keeper.lease_lost()

    def _leader_changed(self, view: FleetView) -> None:
        """Requests that wait for a PC that does not lead any more would wait for ever."""
        for node in alive(view):
            if node != view.leader:
                self._forward.lost(node)


def alive(view: FleetView) -> frozenset[NodeId]:
    """PCs that are linked and not given up."""
    return frozenset(member.node for member in view.members if member.state is not MemberState.DEAD)
