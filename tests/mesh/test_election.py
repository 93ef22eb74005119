"""Scripts for one PC's election: events in, instructions out."""

from __future__ import annotations

from random import Random

import pytest

from meshinfer.core.ids import NO_EPOCH, Epoch, NodeId
from meshinfer.errors import ProtocolViolation
from meshinfer.mesh.candidacy import Peer
from meshinfer.mesh.election import Election
from meshinfer.mesh.instructions import Instruction, Persist, Send
from meshinfer.mesh.timing import ElectionTiming
from meshinfer.wire.election import LARGEST_COUNTER, Campaign, Deny, Grant, Renew, Resign

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")
TIMING = ElectionTiming(jitter_s=0.0)
T0 = 1_048_576.37  # just over a power of two, where differences round


class Script:
    """PC `a` with clock, and peers that a test sets."""

    def __init__(self, stored: Epoch = NO_EPOCH, *peers: Peer) -> None:
        self.now = T0
        self.peers = {peer.node: peer for peer in peers}
        self.election = Election(A, stored, TIMING, Random(1), T0)

    def step(self, seconds: float = 0.0) -> list[Instruction]:
        self.now += seconds
        return self.election.step(self.now, self.peers)

    def hear(self, sender: NodeId, message: object) -> list[Instruction]:
        return self.election.received(sender, message, self.now, self.peers)  # type: ignore[arg-type]

    def on_disk(self, epoch: Epoch) -> list[Instruction]:
        return self.election.persisted(epoch, self.now, self.peers)

    def wait_for(self, kind: type, limit_s: float = 10.0) -> list[Instruction]:
        """Step until an instruction of `kind` comes."""
        end = self.now + limit_s
        while self.now < end:
            steps = self.step(0.1)
            if any(isinstance(step, kind) for step in steps):
                return steps
        raise AssertionError(f"no {kind.__name__} within {limit_s} s")

    def lead(self) -> Epoch:
        """Win an election in which every peer grants."""
        (persist,) = [one for one in self.wait_for(Persist) if isinstance(one, Persist)]
        self.on_disk(persist.epoch)
        for node in self.peers:
            self.hear(node, Grant(persist.epoch, 0))
        assert self.election.leader(self.now) == A
        return persist.epoch

    def follow(self, epoch: Epoch) -> None:
        self.hear(epoch.leader, Renew(epoch, 1))
        self.on_disk(epoch)
        assert self.election.lease(self.now) == epoch


def peer(node: NodeId, lease: Epoch = NO_EPOCH, followers: int = 0, alive: bool = True) -> Peer:
    return Peer(node, alive, False, lease, followers)


def sent(steps: list[Instruction]) -> list[tuple[NodeId, object]]:
    return [(step.node, step.message) for step in steps if isinstance(step, Send)]


def test_a_campaign_follows_the_disk() -> None:
    script = Script(Epoch(7, C), peer(B))
    steps = script.wait_for(Persist)
    assert steps == [Persist(Epoch(8, A))]
    assert script.election.lease(script.now) == NO_EPOCH
    assert sent(script.on_disk(Epoch(8, A))) == [(B, Campaign(Epoch(8, A)))]
    assert script.election.leader(script.now) is None, "nobody has answered"


def test_a_lone_pc_leads_itself_when_the_disk_has_it() -> None:
    script = Script()
    script.wait_for(Persist, 1.3)
    script.on_disk(Epoch(1, A))
    assert script.election.leader(script.now) == A
    assert script.election.accepts(Epoch(1, A), A, script.now)


def test_silence_of_the_others_does_not_stop_a_campaign() -> None:
    script = Script(NO_EPOCH, peer(B))
    script.wait_for(Persist)
    script.on_disk(Epoch(1, A))
    script.step(TIMING.campaign_s + 0.1)
    assert script.election.leader(script.now) == A


def test_a_disk_that_fails_stops_it_and_it_is_tried_again() -> None:
    script = Script()
    script.wait_for(Persist)
    script.election.not_persisted(Epoch(1, A), script.now)
    assert script.election.leader(script.now) is None
    assert script.wait_for(Persist) == [Persist(Epoch(2, A))]


def test_a_grant_follows_the_disk_and_a_renewal_needs_none() -> None:
    script = Script(NO_EPOCH, peer(B))
    assert script.hear(B, Renew(Epoch(3, B), 5)) == [Persist(Epoch(3, B))]
    assert script.election.lease(script.now) == NO_EPOCH
    assert sent(script.on_disk(Epoch(3, B))) == [(B, Grant(Epoch(3, B), 5))]
    assert sent(script.hear(B, Renew(Epoch(3, B), 6))) == [(B, Grant(Epoch(3, B), 6))]


def test_a_lease_in_force_is_not_given_to_a_newer_candidate() -> None:
    """A stable leader is never displaced while its lease is renewed."""
    script = Script(NO_EPOCH, peer(B, Epoch(3, B)), peer(C))
    script.follow(Epoch(3, B))
    answer = script.hear(C, Campaign(Epoch(9, C)))
    assert sent(answer) == [(C, Deny(Epoch(9, C), Epoch(3, B), held=True))]
    assert script.election.lease(script.now) == Epoch(3, B)


def test_an_older_epoch_is_told_what_is_current() -> None:
    """exo 2197: a stale message is answered, not ignored."""
    script = Script(Epoch(7, C), peer(B))
    answer = script.hear(B, Campaign(Epoch(2, B)))
    assert (B, Deny(Epoch(2, B), Epoch(7, C), held=False)) in sent(answer)


def test_a_lease_that_ran_out_is_free_and_the_wait_begins_then() -> None:
    script = Script(NO_EPOCH, peer(B, Epoch(3, B)))
    script.follow(Epoch(3, B))
    assert script.step(TIMING.lease_s - 0.01) == []
    script.peers[B] = peer(B, alive=False)
    assert script.wait_for(Persist, 2.0) == [Persist(Epoch(4, A))]


def test_a_dead_leader_holds_no_lease() -> None:
    script = Script(NO_EPOCH, peer(B))
    script.follow(Epoch(3, B))
    script.election.gone(B, script.now)
    assert script.election.lease(script.now) == NO_EPOCH
    assert not script.election.accepts(Epoch(3, B), B, script.now)


def test_resignation_frees_the_lease_of_that_epoch_only() -> None:
    script = Script(NO_EPOCH, peer(B))
    script.follow(Epoch(3, B))
    script.hear(B, Resign(Epoch(2, B)))
    assert script.election.lease(script.now) == Epoch(3, B)
    script.hear(B, Resign(Epoch(3, B)))
    assert script.election.lease(script.now) == NO_EPOCH


def test_a_candidate_gives_way_to_a_newer_one_not_to_an_older() -> None:
    script = Script(Epoch(4, C), peer(B), peer(C))
    script.wait_for(Persist)
    script.on_disk(Epoch(5, A))
    denied = sent(script.hear(B, Campaign(Epoch(4, B))))
    assert denied == [(B, Deny(Epoch(4, B), Epoch(5, A), held=True))]
    steps = script.hear(C, Campaign(Epoch(6, C)))
    assert Persist(Epoch(6, C)) in steps
    assert (B, Resign(Epoch(5, A))) in sent(steps)
    script.on_disk(Epoch(6, C))
    assert script.election.lease(script.now) == Epoch(6, C)


def test_a_candidate_gives_way_to_who_leads_already() -> None:
    script = Script(Epoch(4, C), peer(B))
    script.wait_for(Persist)
    script.on_disk(Epoch(5, A))
    answer = sent(script.hear(B, Renew(Epoch(4, B), 8)))
    # Free, but its own candidacy is newer than what B leads in: B has to lead on in a newer one.
    assert (B, Deny(Epoch(4, B), Epoch(5, A), held=False)) in answer


def test_a_leader_that_meets_a_newer_epoch_leads_on_in_a_newer_one() -> None:
    script = Script(NO_EPOCH, peer(B))
    epoch = script.lead()
    script.peers[C] = peer(C)
    assert (C, Renew(epoch, 2)) in sent(script.step(0.1))
    steps = script.hear(C, Deny(epoch, Epoch(8, C), held=False))
    assert steps == [Persist(Epoch(9, A))]
    assert script.election.lease(script.now) == epoch, "until it is on disk"
    asked = sent(script.on_disk(Epoch(9, A)))
    assert {node for node, message in asked if isinstance(message, Renew)} == {B, C}
    assert script.election.accepts(Epoch(9, A), A, script.now)


def test_a_late_joiner_is_asked_at_once() -> None:
    script = Script(NO_EPOCH, peer(B))
    epoch = script.lead()
    script.step(0.3)
    script.peers[C] = peer(C)
    assert [node for node, _ in sent(script.step(0.01))] == [C]
    assert script.election.lease(script.now) == epoch


def test_a_leader_that_hears_no_grants_gives_up() -> None:
    script = Script(NO_EPOCH, peer(B))
    script.lead()
    script.now += TIMING.demote_s + 0.2
    assert script.election.leader(script.now) is None, "even before the next step"
    assert not script.election.accepts(script.election.accepted(), A, script.now)
    script.step()
    assert script.election.followers(script.now) == frozenset()


def test_a_leader_that_lost_its_last_follower_leads_itself_on() -> None:
    script = Script(NO_EPOCH, peer(B))
    epoch = script.lead()
    del script.peers[B]
    script.election.gone(B, script.now)
    for _ in range(100):
        script.step(0.1)
    assert script.election.lease(script.now) == epoch


def test_a_leader_gives_way_to_one_with_more_followers() -> None:
    script = Script()
    epoch = script.lead()
    script.peers[B] = peer(B, Epoch(1, B), followers=2)
    script.step(0.1)
    assert script.election.leader(script.now) is None
    # B's epoch may be older than what this PC accepted: then B is told, and raises its own.
    script.follow(Epoch(epoch.counter + 1, B))


def test_a_grant_that_nobody_needs_is_given_back() -> None:
    script = Script(NO_EPOCH, peer(B))
    assert sent(script.hear(B, Grant(Epoch(1, A), 0))) == [(B, Resign(Epoch(1, A)))]


def test_a_campaign_denied_for_a_leader_that_is_heard_is_withdrawn() -> None:
    script = Script(NO_EPOCH, peer(B), peer(C))
    script.wait_for(Persist)
    script.on_disk(Epoch(1, A))
    script.peers[C] = peer(C, Epoch(1, C), followers=1)
    steps = script.hear(B, Deny(Epoch(1, A), Epoch(1, C), held=True))
    assert (C, Resign(Epoch(1, A))) in sent(steps)
    script.step(1.5)
    assert script.election.leader(script.now) is None, "it waits for C to renew"


def test_a_campaign_denied_for_a_leader_that_is_not_heard_goes_on() -> None:
    """A partial partition: B follows Z, which this PC cannot reach. No endless elections."""
    unreachable = Epoch(4, NodeId("z"))
    script = Script(NO_EPOCH, peer(B, unreachable))
    script.wait_for(Persist)
    script.on_disk(Epoch(1, A))
    script.hear(B, Deny(Epoch(1, A), unreachable, held=True))
    script.step(0.1)
    assert script.election.leader(script.now) == A
    epoch = script.election.lease(script.now)
    for _ in range(300):
        for node, message in sent(script.step(0.1)):
            if isinstance(message, Renew):
                script.hear(node, Deny(message.epoch, unreachable, held=True))
    assert script.election.lease(script.now) == epoch


def test_a_free_pc_that_accepted_a_newer_epoch_makes_a_candidate_start_newer() -> None:
    script = Script(NO_EPOCH, peer(B))
    script.wait_for(Persist)
    script.on_disk(Epoch(1, A))
    assert Persist(Epoch(7, A)) in script.hear(B, Deny(Epoch(1, A), Epoch(6, B), held=False))


def test_who_leads_is_waited_for_but_not_for_ever() -> None:
    script = Script(NO_EPOCH, peer(B, Epoch(2, B)))
    begun = script.now
    script.wait_for(Persist)
    assert script.now - begun == pytest.approx(TIMING.await_leader_s, abs=0.25)


def test_the_better_candidate_goes_first_but_is_not_waited_for_for_ever() -> None:
    script = Script(NO_EPOCH, Peer(B, True, True))  # it holds the model
    begun = script.now
    script.wait_for(Persist)
    assert script.now - begun == pytest.approx(TIMING.await_better_s, abs=0.25)


def test_leaving_office_tells_the_followers() -> None:
    script = Script(NO_EPOCH, peer(B))
    epoch = script.lead()
    assert sent(script.election.leave_office(script.now)) == [(B, Resign(epoch))]
    assert script.election.lease(script.now) == NO_EPOCH


def test_speaking_for_another_is_a_violation() -> None:
    script = Script(NO_EPOCH, peer(B))
    with pytest.raises(ProtocolViolation):
        script.hear(B, Campaign(Epoch(3, C)))
    assert script.election.newest == NO_EPOCH, "and not believed"


def test_the_last_counter_is_not_exceeded() -> None:
    script = Script(Epoch(LARGEST_COUNTER, B))
    for _ in range(100):
        assert script.step(0.1) == []
