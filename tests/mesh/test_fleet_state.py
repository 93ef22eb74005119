"""Membership and election together: what one PC says and shows."""

from __future__ import annotations

from random import Random

from meshinfer.core.fleet import Address, Capacity, MemberState
from meshinfer.core.ids import NO_EPOCH, Epoch, NodeId
from meshinfer.mesh.fleet_state import FleetState
from meshinfer.mesh.instructions import CloseLink, Instruction, Persist, Post
from meshinfer.mesh.timing import MeshTiming
from meshinfer.mesh.world import Me
from meshinfer.wire.election import Renew
from meshinfer.wire.hello import Introduction
from meshinfer.wire.membership import Goodbye, Heartbeat

ME, PEER = NodeId("m"), NodeId("p")
HERE = (Address("10.0.0.1", 7000),)
CAPACITY = Capacity(8, 4, 2, (), "2026.4.1")
T0 = 100.0


def state() -> FleetState:
    me = Me(ME, "mine", 7, HERE, HERE, "1.0")
    return FleetState(me, NO_EPOCH, CAPACITY, MeshTiming(), Random(0), T0)


def told(epoch: Epoch = NO_EPOCH, incarnation: int = 1) -> Introduction:
    return Introduction("theirs", incarnation, 3, epoch, epoch, HERE, HERE, CAPACITY, False)


def beats(steps: list[Instruction]) -> list[Heartbeat]:
    messages = [step.message for step in steps if isinstance(step, Post)]
    return [message for message in messages if isinstance(message, Heartbeat)]


def test_the_view_holds_this_pc_from_the_first_moment() -> None:
    view = state().view(T0)
    (me,) = view.members
    assert (me.node, me.name, me.state) == (ME, "mine", MemberState.ALIVE)
    assert view.leader is None
    assert view.epoch == NO_EPOCH


def test_members_come_ordered_and_go() -> None:
    own = state()
    own.link_up(1, PEER, PEER, told(), T0)
    own.link_up(2, NodeId("a"), ME, told(), T0)
    assert [one.node for one in own.view(T0).members] == ["a", ME, PEER]
    own.received(1, Goodbye("bye"), T0)
    assert [one.node for one in own.view(T0).members] == ["a", ME]


def test_a_new_link_gets_a_heartbeat_at_once_and_then_one_a_second() -> None:
    own = state()
    assert len(beats(own.link_up(1, PEER, PEER, told(), T0))) >= 1
    count = 0
    for tick in range(1, 101):
        count += len(beats(own.tick(T0 + 0.1 * tick)))
        if tick % 10 == 0:
            echo = Heartbeat(tick, tick // 10, NO_EPOCH, NO_EPOCH, 0, CAPACITY, False)
            own.received(1, echo, T0 + 0.1 * tick)
    assert 9 <= count <= 12


def test_whom_it_follows_is_told_at_once() -> None:
    own = state()
    own.link_up(1, PEER, PEER, told(), T0)
    epoch = Epoch(3, PEER)
    assert Persist(epoch) in own.received(1, Renew(epoch, 1), T0 + 0.5)
    (beat,) = beats(own.persisted(epoch, T0 + 0.5))
    assert beat.lease == epoch
    assert own.view(T0 + 0.5).leader == PEER
    assert own.introduction(1, T0 + 0.5).lease == epoch


def test_epochs_seen_in_a_greeting_are_outdone() -> None:
    own = state()
    own.link_up(1, PEER, PEER, told(Epoch(40, PEER)), T0)
    assert own.newest == Epoch(40, PEER)


def test_sleep_ends_office_lease_and_links_and_begins_a_new_incarnation() -> None:
    """N11."""
    own = state()
    own.link_up(1, PEER, PEER, told(), T0)
    own.received(1, Renew(Epoch(3, PEER), 1), T0)
    own.persisted(Epoch(3, PEER), T0)
    assert own.accepts(Epoch(3, PEER), PEER, T0)
    steps = own.woke(T0 + 0.1)
    assert not own.accepts(Epoch(3, PEER), PEER, T0 + 0.1)
    assert [step.link for step in steps if isinstance(step, CloseLink)] == [1]
    own.restart(5)  # less than before: it must grow all the same
    assert own.introduction(1, T0 + 0.1).incarnation == 8
    own.restart(20)
    assert own.introduction(1, T0 + 0.1).incarnation == 20


def test_a_pc_that_leaves_does_not_lead_itself_when_its_links_have_ended() -> None:
    own = state()
    own.link_up(1, PEER, PEER, told(), T0)
    own.leave(T0)
    steps = own.link_down(1, T0 + 0.1)
    for tick in range(200):
        steps += own.tick(T0 + 0.1 * tick)
    assert not [step for step in steps if isinstance(step, Persist)]
    assert own.view(T0 + 20.0).leader is None


def test_a_message_of_a_closed_link_does_nothing() -> None:
    own = state()
    own.link_up(1, PEER, PEER, told(), T0)
    own.received(1, Goodbye("bye"), T0)
    assert own.received(1, Renew(Epoch(9, PEER), 1), T0) == []
    assert own.newest == NO_EPOCH


def test_what_it_reports_is_what_others_and_the_view_get() -> None:
    own = state()
    own.link_up(1, PEER, PEER, told(), T0)
    roomier = Capacity(8, 7, 2, (), "2026.4.1")
    own.report(roomier, True, False)
    (beat,) = beats(own.tick(T0 + 1.0))
    assert (beat.capacity, beat.holds_model) == (roomier, True)
    mine = own.view(T0 + 1.0).member(ME)
    assert mine is not None
    assert (mine.capacity, mine.holds_model) == (roomier, True)
