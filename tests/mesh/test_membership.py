"""The member table over time: links, heartbeats, silence, restarts."""

from __future__ import annotations

import pytest

from meshinfer.core.fleet import Address, Capacity, MemberState
from meshinfer.core.ids import NO_EPOCH, Epoch, NodeId
from meshinfer.mesh.instructions import CloseLink, Instruction, Redial
from meshinfer.mesh.membership import MOST_LINKS, Membership
from meshinfer.mesh.timing import MeshTiming
from meshinfer.wire.hello import Introduction
from meshinfer.wire.membership import Heartbeat

ME, PEER, THIRD = NodeId("me"), NodeId("peer"), NodeId("third")
CAPACITY = Capacity(8, 4, 2, (), "2026.4.1")
TIMING = MeshTiming()
ALIVE, SUSPECT, DEAD = MemberState.ALIVE, MemberState.SUSPECT, MemberState.DEAD


def told(incarnation: int = 1, link: int = 0) -> Introduction:
    address = (Address("10.0.0.2", 7000),)
    return Introduction(
        "pc", incarnation, link, NO_EPOCH, NO_EPOCH, address, address, CAPACITY, False
    )


class Table:
    """A Membership with one peer linked at time 0, and its clock."""

    def __init__(self) -> None:
        self.membership = Membership(ME, TIMING)
        self.now = 0.0
        self.sequence = 0
        self.membership.join(1, PEER, PEER, told(), 0.0)

    def beat(self, link: int = 1, seen: int | None = None) -> None:
        """A heartbeat each way."""
        for record in self.membership.links():
            if record.number == link:
                sequence = record.beat(self.now)
                self.sequence += 1
                message = Heartbeat(
                    self.sequence, sequence if seen is None else seen, NO_EPOCH, NO_EPOCH, 0,
                    CAPACITY, False,
                )  # fmt: skip
                self.membership.heartbeat(link, message, self.now)

    def run(self, seconds: float, beating: bool = False) -> list[Instruction]:
        steps: list[Instruction] = []
        end = self.now + seconds
        while self.now < end - 1e-9:
            self.now = round(self.now + 0.1, 6)
            if beating and abs(self.now - round(self.now)) < 1e-6:
                self.beat()
            steps += self.membership.tick(self.now)
        return steps

    @property
    def state(self) -> MemberState | None:
        return next((one.state for one in self.membership.members() if one.node == PEER), None)


def test_a_pc_that_is_heard_stays_alive() -> None:
    table = Table()
    assert table.run(60.0, beating=True) == []
    assert table.state is ALIVE


def test_silence_makes_suspect_then_dead_and_closes_the_link() -> None:
    table = Table()
    table.run(2.4)
    assert table.state is ALIVE
    table.run(0.2)
    assert table.state is SUSPECT
    assert table.run(2.3) == []
    steps = table.run(0.2)
    assert table.state is DEAD
    assert [type(step) for step in steps] == [CloseLink]
    assert table.membership.take_departed() == [PEER]


def test_a_late_heartbeat_makes_alive_again() -> None:
    table = Table()
    table.run(3.0)
    assert table.state is SUSPECT
    table.beat()
    table.run(0.1)
    assert table.state is ALIVE


def test_a_one_way_cut_is_silence_too() -> None:
    """Heartbeats come, but what they say to have seen does not grow."""
    table = Table()
    table.run(1.0, beating=True)
    seen = table.membership.links()[0].sequence
    for _ in range(70):
        table.run(0.1)
        if abs(table.now - round(table.now)) < 1e-6:
            table.beat(seen=seen)
    assert table.state is DEAD


def test_a_broken_link_is_suspect_at_once_and_redialled_once() -> None:
    table = Table()
    assert table.membership.unlink(1, 0.5) == [Redial(PEER)]
    assert table.state is SUSPECT
    assert table.membership.unlink(1, 0.6) == []
    assert table.membership.primary(PEER) is None
    assert not table.membership.peers()[PEER].alive


def test_nobody_at_its_addresses_means_dead_after_a_grace() -> None:
    table = Table()
    table.run(1.0, beating=True)
    table.membership.unlink(1, table.now)
    table.membership.redial_failed(PEER)
    table.run(TIMING.redial_grace_s - 0.1)
    assert table.state is SUSPECT
    table.run(0.2)
    assert table.state is DEAD


def test_a_redial_that_failed_while_the_other_side_dialled_does_not_matter() -> None:
    table = Table()
    table.membership.unlink(1, 0.5)
    table.membership.join(2, PEER, PEER, told(), 0.6)
    table.membership.redial_failed(PEER)
    table.run(1.5)
    assert table.state is ALIVE
    assert table.membership.take_departed() == []


def test_a_silent_redial_is_dead_in_the_same_time() -> None:
    table = Table()
    table.membership.unlink(1, 0.1)
    table.run(5.2)
    assert table.state is DEAD


def test_goodbye_removes_at_once() -> None:
    table = Table()
    steps = table.membership.goodbye(1)
    assert [type(step) for step in steps] == [CloseLink]
    assert table.state is None
    assert table.membership.take_departed() == [PEER]
    assert table.membership.unlink(1, 0.2) == [], "nobody is redialled"


@pytest.mark.parametrize("unnoticed", [True, False])
def test_a_new_start_is_the_same_member_and_the_old_links_go(unnoticed: bool) -> None:
    """J12, also when the old link has not broken yet."""
    table = Table()
    if not unnoticed:
        table.membership.unlink(1, 0.1)
    steps = table.membership.join(2, PEER, PEER, told(incarnation=2), 0.2)
    assert [step for step in steps if isinstance(step, CloseLink) and step.link == 1] == steps
    assert bool(steps) is unnoticed
    assert [one.node for one in table.membership.members()] == [PEER]
    assert table.membership.take_departed() == [PEER], "its old lease is void"
    assert table.membership.primary(PEER) == 2
    assert table.membership.owner(1) is None


def test_a_stale_link_of_an_older_start_is_refused() -> None:
    table = Table()
    table.membership.join(2, PEER, PEER, told(incarnation=5), 0.1)
    table.membership.take_departed()
    steps = table.membership.join(3, PEER, PEER, told(incarnation=4), 0.2)
    assert [step.link for step in steps if isinstance(step, CloseLink)] == [3]
    assert table.membership.primary(PEER) == 2
    assert table.membership.owner(3) is None


def test_an_older_number_is_believed_when_no_link_is_left() -> None:
    """Its state folder was restored from a backup: it must not be locked out for ever."""
    table = Table()
    table.membership.join(2, PEER, PEER, told(incarnation=5), 0.1)
    table.membership.unlink(2, 0.2)
    assert table.membership.join(3, PEER, PEER, told(incarnation=1), 0.3) == []
    assert table.membership.primary(PEER) == 3


def test_this_pc_is_no_member_of_its_own_table() -> None:
    table = Table()
    assert [type(one) for one in table.membership.join(9, ME, ME, told(), 0.1)] == [CloseLink]
    assert [one.node for one in table.membership.members()] == [PEER]


def test_a_pc_whose_loop_was_late_accuses_nobody_at_first() -> None:
    """N08: after 8 s in which nothing ran here, everybody looks silent."""
    table = Table()
    table.now = 8.0
    table.membership.lagged(8.0)
    table.membership.tick(8.0)
    assert table.state is ALIVE
    table.beat()  # what waited in the socket
    table.run(1.5)
    assert table.state is ALIVE


def test_and_then_is_patient_but_not_for_ever() -> None:
    table = Table()
    table.membership.lagged(0.0)
    table.run(4.9)
    assert table.state is ALIVE
    table.run(0.3)
    assert table.state is SUSPECT
    table.run(5.0)
    assert table.state is DEAD


def test_the_dead_are_shown_for_a_while() -> None:
    table = Table()
    table.run(6.0)
    assert table.state is DEAD
    assert PEER not in table.membership.peers()
    table.now = TIMING.forget_dead_s + 0.1
    table.membership.tick(table.now)
    assert table.state is None


def test_a_dead_pc_that_comes_back_is_alive() -> None:
    table = Table()
    table.run(6.0)
    table.membership.join(2, PEER, ME, told(), table.now)
    assert table.state is ALIVE
    table.run(1.0)
    assert table.state is ALIVE


def test_what_heartbeats_tell_is_kept() -> None:
    table = Table()
    roomier = Capacity(8, 7, 2, (), "2026.4.1")
    table.membership.heartbeat(
        1, Heartbeat(1, 0, Epoch(4, PEER), Epoch(4, PEER), 3, roomier, True), 0.5
    )
    (member,) = table.membership.members()
    assert (member.capacity, member.holds_model) == (roomier, True)
    peer = table.membership.peers()[PEER]
    assert (peer.leads, peer.followers, peer.holds_model) == (True, 3, True)


def test_messages_of_links_that_are_closed_do_nothing() -> None:
    table = Table()
    table.membership.goodbye(1)
    table.beat(1)
    assert table.membership.superseded(1, 0.1) == []
    assert table.membership.members() == ()


def test_waking_up_forgets_everybody() -> None:
    table = Table()
    table.membership.join(2, THIRD, ME, told(), 0.1)
    assert {step.link for step in table.membership.clear() if isinstance(step, CloseLink)} == {1, 2}
    assert table.membership.members() == ()


def test_the_links_of_one_pc_are_bounded_and_a_restart_begins_anew() -> None:
    table = Table()
    for number in range(2, MOST_LINKS + 1):
        assert table.membership.join(number, PEER, PEER, told(link=number), 0.0) == []
    (step,) = table.membership.join(99, PEER, PEER, told(link=99), 0.0)
    assert isinstance(step, CloseLink)
    assert step.link == 99
    assert table.membership.owner(99) is None
    table.membership.join(100, PEER, PEER, told(incarnation=2), 0.0)
    assert [link.number for link in table.membership.links()] == [100]
