"""Who is in the fleet, from what links tell. Pure: (event, now) -> instructions.

A PC is one member however often it starts or is linked (`LinkSet`). It is suspect after 2.5 s of
silence in either direction, dead after 5 s; a link that breaks makes it suspect at once and is
redialled once; Goodbye removes it at once. A PC whose own event loop was late distrusts itself:
it accuses nobody for a moment and then is patient (Lifeguard). Called by `FleetState` only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from meshinfer.core.fleet import Address, Capacity, Member, MemberState
from meshinfer.core.ids import NO_EPOCH, Epoch, NodeId, short
from meshinfer.mesh.candidacy import Peer
from meshinfer.mesh.instructions import CloseLink, Instruction, Redial
from meshinfer.mesh.link_set import LinkRecord, LinkSet
from meshinfer.mesh.timing import MeshTiming
from meshinfer.wire.hello import Introduction
from meshinfer.wire.membership import Heartbeat

MOST_LINKS = 8  # of one PC; two that dial each other have two, a flapping network a few more


@dataclass(slots=True)
class MemberRecord:
    """One PC in one incarnation."""

    node: NodeId
    introduction: Introduction
    capacity: Capacity
    holds_model: bool
    lease: Epoch
    joined_at: float
    heard_at: float
    followers: int = 0
    state: MemberState = MemberState.ALIVE
    links: LinkSet = field(default_factory=LinkSet)
    unlinked_at: float = 0.0
    redial_failed: bool = False

    def member(self) -> Member:
        told = self.introduction
        return Member(
            self.node,
            told.name,
            self.state,
            self.capacity,
            told.agent_addresses,
            told.ring_addresses,
            self.holds_model,
            self.joined_at,
        )

    def peer(self) -> Peer:
        alive = self.state is MemberState.ALIVE and bool(self.links)
        lease = self.lease if alive else NO_EPOCH
        return Peer(self.node, alive, self.holds_model, lease, self.followers)


class Membership:
    """The table of the other PCs."""

    def __init__(self, me: NodeId, timing: MeshTiming) -> None:
        self._me = me
        self._timing = timing
        self._records: dict[NodeId, MemberRecord] = {}
        self._owners: dict[int, NodeId] = {}  # link -> PC
        self._departed: list[NodeId] = []
        self._no_accusing_until = 0.0
        self._patient_until = 0.0

    # What is

    def members(self) -> tuple[Member, ...]:
        return tuple(record.member() for record in self._records.values())

    def peers(self) -> dict[NodeId, Peer]:
        """PCs that are not dead, as the election sees them."""
        return {
            node: record.peer()
            for node, record in self._records.items()
            if record.state is not MemberState.DEAD
        }

    def owner(self, link: int) -> NodeId | None:
        return self._owners.get(link)

    def primary(self, node: NodeId) -> int | None:
        record = self._records.get(node)
        return record.links.primary if record else None

    def links(self) -> list[LinkRecord]:
        return [link for record in self._records.values() for link in record.links.all()]

    def linked(self) -> frozenset[NodeId]:
        return frozenset(node for node, record in self._records.items() if record.links)

    def addresses(self, node: NodeId) -> tuple[Address, ...]:
        """Where the PC says that it may be dialled."""
        record = self._records.get(node)
        return record.introduction.agent_addresses if record else ()

    def must_wait(self, link: int) -> bool:
        record = self._owning(link)
        return record is not None and record.links.must_wait(link)

    def take_departed(self) -> list[NodeId]:
        """PCs that died, left or started anew since the last call."""
        departed, self._departed = self._departed, []
        return departed

    # What happens

    def join(
        self, link: int, node: NodeId, dialler: NodeId, told: Introduction, now: float
    ) -> list[Instruction]:
        """A link is up and both sides have introduced themselves."""
        known = self._records.get(node)
        unwelcome = self._why_unwelcome(node, known, told)
        if unwelcome:
            return [CloseLink(link, unwelcome)]
        steps: list[Instruction] = []
        if known is None or told.incarnation != known.introduction.incarnation:
            steps = self._forget(node, "the PC started anew") if known else []
            known = MemberRecord(
                node, told, told.capacity, told.holds_model, told.lease, now, heard_at=now
            )
            self._records[node] = known
        known.introduction = told
        known.lease = told.lease
        known.state = MemberState.ALIVE
        known.heard_at = now
        known.redial_failed = False
        known.links.add(LinkRecord(link, (dialler, told.link), now, now))
        self._owners[link] = node
        return steps

    def _why_unwelcome(
        self, node: NodeId, known: MemberRecord | None, told: Introduction
    ) -> str | None:
        if node == self._me:
            return "this PC dialled itself"
        if known is None or not known.links:
            return None
        if told.incarnation < known.introduction.incarnation:
            return "a newer start of this PC is linked already"
        same_start = told.incarnation == known.introduction.incarnation
        full = same_start and len(known.links.all()) >= MOST_LINKS
        return "too many links join the two PCs" if full else None

    def heartbeat(self, link: int, message: Heartbeat, now: float) -> list[Instruction]:
        record = self._owning(link)
        known = record.links.get(link) if record else None
        if record is None or known is None:
            return []
        known.heard(message.sequence, message.seen, now)
        record.heard_at = now
        record.capacity = message.capacity
        record.holds_model = message.holds_model
        record.lease = message.lease
        record.followers = message.followers
        return self._unify(record, now)

    def superseded(self, link: int, now: float) -> list[Instruction]:
        """The other side says nothing more on this link."""
        record = self._owning(link)
        known = record.links.get(link) if record else None
        if record is None or known is None:
            return []
        known.ended_by_peer = True
        return self._unify(record, now)

    def unlink(self, link: int, now: float) -> list[Instruction]:
        """A link is gone, whoever closed it."""
        record = self._owning(link)
        self._owners.pop(link, None)
        if record is None or record.links.get(link) is None:
            return []
        record.links.remove(link)
        if record.links or record.state is MemberState.DEAD:
            return []
        record.state = MemberState.SUSPECT
        record.unlinked_at = now
        record.redial_failed = False
        return [Redial(record.node)]

    def redial_failed(self, node: NodeId) -> None:
        """Nobody answered at the addresses of a PC whose link broke."""
        record = self._records.get(node)
        if record is not None and not record.links:
            record.redial_failed = True

    def goodbye(self, link: int) -> list[Instruction]:
        record = self._owning(link)
        return self._forget(record.node, "it said goodbye") if record else []

    def lagged(self, now: float) -> None:
        """This PC's event loop was late: what it did not hear may be its own fault."""
        self._no_accusing_until = now + self._timing.no_accusing_s
        self._patient_until = now + self._timing.patient_s

    def clear(self) -> list[Instruction]:
        """This PC slept: nothing that it knows of others holds any more."""
        return [step for node in list(self._records) for step in self._forget(node, "it slept")]

    def tick(self, now: float) -> list[Instruction]:
        steps: list[Instruction] = []
        for record in list(self._records.values()):
            steps += self._judge(record, now)
            steps += self._unify(record, now)
        return steps

    def _judge(self, record: MemberRecord, now: float) -> list[Instruction]:
        timing = self._timing
        if record.state is MemberState.DEAD:
            if now - record.heard_at >= timing.forget_dead_s:
                del self._records[record.node]
            return []
        if record.links:
            silence_s = record.links.silence_s(now, timing.heartbeat_s)
        else:
            silence_s = now - record.heard_at
        factor = 2.0 if now < self._patient_until else 1.0
        accusing = now >= self._no_accusing_until
        nobody = record.redial_failed and now - record.unlinked_at >= timing.redial_grace_s
        if accusing and ((not record.links and nobody) or silence_s >= timing.dead_s * factor):
            return self._bury(record)
        if silence_s < timing.suspect_s * factor and record.links:
            record.state = MemberState.ALIVE
        elif accusing:
            record.state = MemberState.SUSPECT
        return []

    def _bury(self, record: MemberRecord) -> list[Instruction]:
        record.state = MemberState.DEAD
        self._departed.append(record.node)
        return self._close(record.links.all(), record, f"{short(record.node)} is silent")

    def _forget(self, node: NodeId, reason: str) -> list[Instruction]:
        record = self._records.pop(node)
        self._departed.append(node)
        return self._close(record.links.all(), record, reason)

    def _close(
        self, links: Iterable[LinkRecord], record: MemberRecord, reason: str
    ) -> list[Instruction]:
        steps: list[Instruction] = []
        for link in links:
            record.links.remove(link.number)
            self._owners.pop(link.number, None)
            steps.append(CloseLink(link.number, reason))
        return steps

    def _unify(self, record: MemberRecord, now: float) -> list[Instruction]:
        steps = record.links.unify(now, self._timing.suspect_s, self._timing.supersede_s)
        for step in steps:
            if isinstance(step, CloseLink):
                self._owners.pop(step.link, None)
        return steps

    def _owning(self, link: int) -> MemberRecord | None:
        node = self._owners.get(link)
        return self._records.get(node) if node is not None else None
