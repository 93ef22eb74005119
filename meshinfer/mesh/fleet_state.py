"""Membership and election as one pure machine: what the shell and the simulator both drive.

Events come in as method calls with the time; instructions come out, to be executed in order.
"""

from __future__ import annotations

from random import Random

from meshinfer.core.fleet import Address, Capacity, FleetView, Member, MemberState
from meshinfer.core.ids import Epoch, NodeId
from meshinfer.mesh.election import Election
from meshinfer.mesh.instructions import Instruction, Post
from meshinfer.mesh.membership import Membership
from meshinfer.mesh.timing import MeshTiming
from meshinfer.mesh.world import Me
from meshinfer.wire.election import Campaign, Deny, Grant, Renew, Resign
from meshinfer.wire.hello import Introduction
from meshinfer.wire.membership import Goodbye, Heartbeat, Superseded

StateMessage = Campaign | Renew | Grant | Deny | Resign | Heartbeat | Superseded | Goodbye
STATE_MESSAGES = (Campaign, Renew, Grant, Deny, Resign, Heartbeat, Superseded, Goodbye)


class FleetState:
    """`stored` is the newest epoch on disk; `capacity` what this PC offers at first."""

    def __init__(
        self,
        me: Me,
        stored: Epoch,
        capacity: Capacity,
        timing: MeshTiming,
        random: Random,
        now: float,
    ) -> None:
        self._me = me
        self._timing = timing
        self._incarnation = me.incarnation
        self._capacity = capacity
        self._since = now
        self._membership = Membership(me.node, timing)
        self._election = Election(me.node, stored, timing.election, random, now)
        self._told: tuple[Epoch, int] | None = None  # lease and followers, as last heartbeats said
        self._leaving = False

    # What is

    @property
    def newest(self) -> Epoch:
        return self._election.newest

    @property
    def accepted(self) -> Epoch:
        """The newest epoch that this PC granted its lease."""
        return self._election.accepted()

    def lease(self, now: float) -> Epoch:
        return self._election.lease(now)

    def accepts(self, epoch: Epoch, sender: NodeId, now: float) -> bool:
        return self._election.accepts(epoch, sender, now)

    def view(self, now: float) -> FleetView:
        """The fleet with this PC; the epoch is that of the lease, else the newest granted."""
        me = self._me
        own = Member(
            me.node,
            me.name,
            MemberState.ALIVE,
            self._capacity,
            me.agent_addresses,
            me.ring_addresses,
            self._election.holds_model,
            self._since,
        )
        members = sorted((own, *self._membership.members()), key=lambda member: member.node)
        lease = self._election.lease(now)
        epoch = lease if lease.leader else self._election.accepted()
        return FleetView(me.node, tuple(members), epoch, lease.leader or None)

    def introduction(self, link: int, now: float) -> Introduction:
        """What this PC says of itself first; `link` is the number that the dialler drew."""
        me = self._me
        return Introduction(
            me.name,
            self._incarnation,
            link,
            self._election.newest,
            self._election.lease(now),
            me.agent_addresses,
            me.ring_addresses,
            self._capacity,
            self._election.holds_model,
        )

    def owner(self, link: int) -> NodeId | None:
        return self._membership.owner(link)

    def primary(self, node: NodeId) -> int | None:
        """The link that messages to `node` go over."""
        return self._membership.primary(node)

    def linked(self) -> frozenset[NodeId]:
        return self._membership.linked()

    def addresses(self, node: NodeId) -> tuple[Address, ...]:
        return self._membership.addresses(node)

    def must_wait(self, link: int) -> bool:
        return self._membership.must_wait(link)

    # What happens

    def begin(self, now: float) -> None:
        """The shell starts to run: what waits for time waits from now on."""
        self._since = now
        self._election.begin(now)

    def report(self, capacity: Capacity, holds_model: bool, dialling: bool) -> None:
        """What this PC offers now, and whether somebody is still being dialled."""
        self._capacity = capacity
        self._election.holds_model = holds_model
        self._election.dialling = dialling

    def link_up(
        self, link: int, node: NodeId, dialler: NodeId, told: Introduction, now: float
    ) -> list[Instruction]:
        self._election.saw(told.epoch)
        steps = self._membership.join(link, node, dialler, told, now)
        return steps + self._beat(now, only_due=True) + self._settle(now)

    def link_down(self, link: int, now: float) -> list[Instruction]:
        return self._membership.unlink(link, now) + self._settle(now)

    def redial_failed(self, node: NodeId, now: float) -> list[Instruction]:
        self._membership.redial_failed(node)
        return self.tick(now)

    def received(self, link: int, message: StateMessage, now: float) -> list[Instruction]:
        """Raises ProtocolViolation when the PC speaks for another. A closed link is ignored."""
        sender = self._membership.owner(link)
        if sender is None:
            return []
        steps: list[Instruction]
        match message:
            case Heartbeat():
                self._election.saw(message.epoch)
                steps = self._membership.heartbeat(link, message, now)
            case Superseded():
                steps = self._membership.superseded(link, now)
            case Goodbye():
                steps = self._membership.goodbye(link)
            case _:
                steps = self._election.received(sender, message, now, self._membership.peers())
        return steps + self._settle(now)

    def persisted(self, epoch: Epoch, now: float) -> list[Instruction]:
        steps = self._election.persisted(epoch, now, self._membership.peers())
        return steps + self._settle(now)

    def not_persisted(self, epoch: Epoch, now: float) -> None:
        self._election.not_persisted(epoch, now)

    def lagged(self, now: float) -> None:
        self._membership.lagged(now)

    def leave(self, now: float) -> list[Instruction]:
        """This PC gives up office and lease for good; say Goodbye after this."""
        self._leaving = True
        return self._election.leave_office(now)

    def woke(self, now: float) -> list[Instruction]:
        """This PC slept: no office, no lease, no links. Call `restart` before linking again."""
        dropped = self._election.leave_office(now)
        closed = self._membership.clear()
        self._membership.take_departed()
        self._told = None
        return dropped + closed

    def restart(self, incarnation: int) -> None:
        """Go on as a new incarnation, so that others drop what they know of the old one."""
        self._incarnation = max(incarnation, self._incarnation + 1)

    def tick(self, now: float) -> list[Instruction]:
        steps = self._membership.tick(now)
        return steps + self._settle(now) + self._beat(now, only_due=True)

    def _settle(self, now: float) -> list[Instruction]:
        """Let the election follow the members, and tell them at once whom this PC follows."""
        for node in self._membership.take_departed():
            self._election.gone(node, now)
        if self._leaving:
            return []  # or a PC whose links have ended would lead itself while it shuts down
        steps = self._election.step(now, self._membership.peers())
        position = (self._election.lease(now), len(self._election.followers(now)))
        if position != self._told:
            self._told = position
            steps += self._beat(now, only_due=False)
        return steps

    def _beat(self, now: float, only_due: bool) -> list[Instruction]:
        lease, followers = self._election.lease(now), len(self._election.followers(now))
        every = self._timing.heartbeat_s - self._timing.tick_s / 2
        return [
            Post(
                link.number,
                Heartbeat(
                    link.beat(now),
                    link.seen,
                    self._election.newest,
                    lease,
                    followers,
                    self._capacity,
                    self._election.holds_model,
                ),
            )
            for link in self._membership.links()
            if not only_due or now - link.beat_at >= every
        ]
