"""Who leads, as one PC decides it. Pure: (event, now, peers) -> instructions.

A PC is in one of four situations: it leads (`Office`), it campaigns (`Candidacy`), it follows (its
lease belongs to another PC), or it waits (`Waiting`) with a deadline. `facts/mesh.md` B1 has the
reasons. Called by `FleetState` only; `peers` are the PCs with a link, alive or suspect.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from meshinfer.core.ids import NO_EPOCH, Epoch, NodeId
from meshinfer.mesh.candidacy import Candidacy, Peer
from meshinfer.mesh.claim import ElectionMessage, claimed_epoch
from meshinfer.mesh.instructions import Instruction, Persist, Send
from meshinfer.mesh.lease import NodeLease
from meshinfer.mesh.office import Office
from meshinfer.mesh.timing import ElectionTiming
from meshinfer.mesh.waiting import Waiting, reason_to_wait
from meshinfer.wire.election import LARGEST_COUNTER, Campaign, Deny, Grant, Renew, Resign

Peers = Mapping[NodeId, Peer]


class Election:
    """`stored` is the newest epoch that the disk holds."""

    def __init__(
        self, me: NodeId, stored: Epoch, timing: ElectionTiming, random: Random, now: float
    ) -> None:
        self.newest = stored
        self._me = me
        self._timing = timing
        self._random = random
        self._lease = NodeLease(stored, timing.lease_s)
        self._office: Office | None = None
        self._candidacy: Candidacy | None = None
        self._waiting = Waiting(timing, now)
        self._granting: tuple[Epoch, int] | None = None  # waits for the disk
        self._out: list[Instruction] = []
        self.holds_model = False  # this PC could lead without fetching anything
        self.dialling = False  # a PC that may be there was not reached yet, nor has that failed

    # What is

    def leader(self, now: float) -> NodeId | None:
        """Whom this PC follows; itself while it leads; None while nobody holds the lease."""
        return self.lease(now).leader or None

    def lease(self, now: float) -> Epoch:
        """The epoch that this PC's lease belongs to; for a leader its own while it may act."""
        held = self._lease.held(now)
        if held.leader == self._me and (self._office is None or not self._office.stands(now)):
            return NO_EPOCH  # a candidate, or a leader that lost touch
        return held

    def accepted(self) -> Epoch:
        """The newest epoch that this PC ever granted its lease."""
        return self._lease.accepted

    def accepts(self, epoch: Epoch, sender: NodeId, now: float) -> bool:
        """Whether `sender` may give this PC a plan of `epoch` now."""
        return epoch != NO_EPOCH and sender == epoch.leader and self.lease(now) == epoch

    def followers(self, now: float) -> frozenset[NodeId]:
        return self._office.followers(now) if self._office else frozenset()

    # What happens

    def begin(self, now: float) -> None:
        """Nothing was decided yet: the first wait begins."""
        self._waiting = Waiting(self._timing, now)

    def saw(self, epoch: Epoch) -> None:
        """An epoch that somebody knows of. This PC's next one will be newer."""
        self.newest = max(self.newest, epoch)

    def step(self, now: float, peers: Peers) -> list[Instruction]:
        """Decide what time and `peers` ask for. Call it often, and after every other event."""
        self._forget_lost(now, peers)
        if self._office is not None:
            self._keep_office(self._office, now, peers)
        elif self._candidacy is not None:
            self._conclude(self._candidacy, now, peers)
        elif self._lease.held(now) == NO_EPOCH:
            self._wait(now, peers)
        return self._take()

    def received(
        self, sender: NodeId, message: ElectionMessage, now: float, peers: Peers
    ) -> list[Instruction]:
        """Raises ProtocolViolation when `sender` speaks for another PC."""
        self.saw(claimed_epoch(message, self._me, sender))
        self._forget_lost(now, peers)
        match message:
            case Campaign():
                self._asked(message.epoch, 0, now)
            case Renew():
                self._asked(message.epoch, message.round, now)
            case Grant():
                self._granted(sender, message)
            case Deny():
                self._denied(sender, message, now, peers)
            case Resign():
                self._free(sender, now, message.epoch)
        return self._take() + self.step(now, peers)

    def persisted(self, epoch: Epoch, now: float, peers: Peers) -> list[Instruction]:
        """`epoch` is on disk: what waited for that may be said."""
        self._forget_lost(now, peers)
        if self._candidacy is not None and self._candidacy.epoch == epoch:
            self._open_campaign(self._candidacy, now, peers)
        if self._office is not None and self._office.successor == epoch:
            self._office.succeed(now)
            self._lease.grant(epoch, now)
        if self._granting is not None and self._granting[0] == epoch:
            (_, round_number), self._granting = self._granting, None
            self._answer(epoch, round_number, now)
        return self._take() + self.step(now, peers)

    def not_persisted(self, epoch: Epoch, now: float) -> None:
        """The disk failed: whatever needed `epoch` does not happen, and is tried again later."""
        if self._candidacy is not None and self._candidacy.epoch == epoch:
            self._candidacy = None
            self._waiting = Waiting(self._timing, now)
        if self._office is not None and self._office.successor == epoch:
            self._office.successor = None
        if self._granting is not None and self._granting[0] == epoch:
            self._granting = None

    def gone(self, node: NodeId, now: float) -> None:
        """The PC is dead, left or started anew: it holds no lease, and its grants are void."""
        self._free(node, now)
        if self._granting is not None and self._granting[0].leader == node:
            self._granting = None
        if self._office is not None:
            self._office.drop(node)
        if self._candidacy is not None:
            self._candidacy.drop(node)

    def leave_office(self, now: float) -> list[Instruction]:
        """This PC goes, or slept: it neither leads nor follows any more."""
        self._resign(now)
        self._lease.drop()
        self._granting = None
        return self._take()

    # Leading

    def _keep_office(self, office: Office, now: float, peers: Peers) -> None:
        better = [peer for peer in peers.values() if office.yields_to(peer, self.holds_model, now)]
        if better:
            self._resign(now)
            return
        self._lease.grant(office.epoch, now)
        due = office.due(list(peers), now)
        if due:
            number = office.ask(due, now)
            self._out += [Send(node, Renew(office.epoch, number)) for node in due]

    def _resign(self, now: float) -> None:
        """Give up office or candidacy; free at once the leases that were granted for it."""
        if self._office is not None:
            epoch, granted = self._office.epoch, set(self._office.followers(now))
        elif self._candidacy is not None and self._candidacy.asked is not None:
            epoch, granted = self._candidacy.epoch, set(self._candidacy.asked)
        else:
            epoch, granted = NO_EPOCH, set()
        self._out += [Send(node, Resign(epoch)) for node in sorted(granted)]
        self._office = self._candidacy = None
        self._lease.release(self._me)
        self._waiting = Waiting(self._timing, now)

    # Campaigning

    def _wait(self, now: float, peers: Peers) -> None:
        alive = [peer for peer in peers.values() if peer.alive]
        reason = reason_to_wait((self._me, self.holds_model), alive, self.newest)
        if self._waiting.over(reason, now, self.dialling, self._random.random()):
            self._campaign()

    def _campaign(self) -> None:
        if self.newest.counter >= LARGEST_COUNTER:
            return  # only a broken PC gets there; the fleet needs `rotate`
        self.newest = Epoch(self.newest.counter + 1, self._me)
        self._candidacy = Candidacy(self.newest)
        self._out.append(Persist(self.newest))

    def _open_campaign(self, candidacy: Candidacy, now: float, peers: Peers) -> None:
        if not self._lease.may_grant(candidacy.epoch, now):
            self._resign(now)
            return
        self._lease.grant(candidacy.epoch, now)
        asked = frozenset(peer.node for peer in peers.values() if peer.alive)
        candidacy.start(asked, now)
        self._out += [Send(node, Campaign(candidacy.epoch)) for node in sorted(asked)]

    def _conclude(self, candidacy: Candidacy, now: float, peers: Peers) -> None:
        for node in (candidacy.asked or frozenset()) - set(peers):
            candidacy.drop(node)
        if not candidacy.complete(now, self._timing.campaign_s):
            return
        if self._lease.held(now) != candidacy.epoch:
            self._resign(now)
            return
        self._candidacy = None
        self._office = Office(candidacy.epoch, self._timing, candidacy.started_at)
        for node in candidacy.granted:
            self._office.granted(node, 0)
        self._keep_office(self._office, now, peers)

    # Following

    def _asked(self, epoch: Epoch, round_number: int, now: float) -> None:
        """A Campaign (round 0) or a Renew: grant the lease, or say whom it belongs to."""
        candidacy = self._candidacy
        if candidacy is not None and (round_number > 0 or epoch > candidacy.epoch):
            self._resign(now)  # give way to who leads already, and to a newer candidate
        if epoch == self._lease.accepted or not self._lease.may_grant(epoch, now):
            self._answer(epoch, round_number, now)
            return
        if self._granting is None or self._granting[0] != epoch:
            self._out.append(Persist(epoch))
        self._granting = (epoch, round_number)

    def _answer(self, epoch: Epoch, round_number: int, now: float) -> None:
        """Grant (`epoch` is on disk) or Deny."""
        reply: Grant | Deny = Grant(epoch, round_number)
        held = self._lease.held(now)
        if self._lease.may_grant(epoch, now):
            self._lease.grant(epoch, now)
            self._waiting = Waiting(self._timing, now + self._timing.lease_s)
        elif held != NO_EPOCH and held.leader != epoch.leader:
            reply = Deny(epoch, held, held=True)
        else:
            reply = Deny(epoch, self.newest, held=False)
        self._out.append(Send(epoch.leader, reply))

    def _granted(self, sender: NodeId, message: Grant) -> None:
        if self._office is not None and self._office.epoch == message.epoch:
            self._office.granted(sender, message.round)
        elif self._candidacy is not None and self._candidacy.epoch == message.epoch:
            self._candidacy.grant(sender)
        else:  # a lease that this PC has no use for must not keep the sender from others
            self._out.append(Send(sender, Resign(message.epoch)))

    def _denied(self, sender: NodeId, message: Deny, now: float, peers: Peers) -> None:
        self.saw(message.current)
        if self._office is not None and self._office.epoch == message.asked:
            self._office.deny(sender)
            if not message.held and message.current > self._office.epoch:
                self._raise_epoch(self._office)
        elif self._candidacy is not None and self._candidacy.epoch == message.asked:
            self._candidacy.deny(sender)
            if message.held and self._can_follow(message.current, peers):
                self._resign(now)
            elif not message.held and message.current > message.asked:
                self._resign(now)
                self._campaign()

    def _can_follow(self, epoch: Epoch, peers: Peers) -> bool:
        """Whether `epoch` is led by a PC that this one hears, now or (newer than ours) soon."""
        peer = peers.get(epoch.leader)
        if peer is None or not peer.alive:
            return False
        assert self._candidacy is not None
        return peer.leads or epoch > self._candidacy.epoch

    def _raise_epoch(self, office: Office) -> None:
        """A free PC accepted a newer epoch once: lead on in one that is newer than that."""
        if office.successor is None and self.newest.counter < LARGEST_COUNTER:
            self.newest = Epoch(self.newest.counter + 1, self._me)
            office.successor = self.newest
            self._out.append(Persist(self.newest))

    def _free(self, leader: NodeId, now: float, epoch: Epoch | None = None) -> None:
        """The lease of `leader` ends now (only that of `epoch`, if given)."""
        held = self._lease.held(now)
        if held == NO_EPOCH or held.leader != leader or epoch not in (None, held):
            return
        self._lease.release(leader)
        self._waiting = Waiting(self._timing, now)

    def _forget_lost(self, now: float, peers: Peers) -> None:
        """A leader that is not there any more; and this PC's own office, if time took it."""
        held = self._lease.held(now)
        if held != NO_EPOCH and held.leader != self._me and held.leader not in peers:
            self._free(held.leader, now)
        office = self._office
        if office is not None and (held != office.epoch or not office.stands(now)):
            self._resign(now)

    def _take(self) -> list[Instruction]:
        taken, self._out = self._out, []
        return taken
