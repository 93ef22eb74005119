"""Whom to dial and when."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshinfer.core.fleet import Address
from meshinfer.core.ids import NodeId
from meshinfer.mesh.dial_queue import MOST_AT_ONCE, MOST_TARGETS, DialQueue, Target
from meshinfer.mesh.timing import MeshTiming

ME, PEER = NodeId("me"), NodeId("peer")
HERE, THERE, ELSEWHERE = (Address(f"192.168.1.{n}", 7000) for n in (1, 2, 3))
NOBODY: frozenset[NodeId] = frozenset()


def queue(seed: int = 0) -> DialQueue:
    return DialQueue(ME, ["192.168.1.9"], MeshTiming(), Random(seed))


def only(targets: list[Target]) -> Target:
    (target,) = targets
    return target


def test_a_hint_is_dialled_at_once_and_not_twice() -> None:
    own = queue()
    own.hint(PEER, [THERE], 10.0)
    target = only(own.due(NOBODY, 10.0))
    assert (target.node, target.addresses) == (PEER, (THERE,))
    assert own.due(NOBODY, 10.0) == []


def test_neither_oneself_nor_who_is_linked() -> None:
    own = queue()
    own.hint(ME, [HERE], 10.0)
    own.hint(PEER, [THERE], 10.0)
    assert own.due(frozenset({PEER}), 10.0) == []


def test_a_seed_and_a_hint_of_one_pc_are_not_dialled_together_once_known() -> None:
    """J02: `--peer` and mDNS together make no duplicates."""
    own = queue()
    own.seed(THERE, 10.0)
    target = only(own.due(NOBODY, 10.0))
    own.reached(target, PEER, THERE, 10.1)
    own.hint(PEER, [THERE, ELSEWHERE], 10.2, fresh=True)
    assert own.due(frozenset({PEER}), 20.0) == []
    assert len(own.due(NOBODY, 20.0)) <= 2


def test_a_seed_that_names_this_pc_is_forgotten() -> None:
    own = queue()
    own.seed(HERE, 10.0)
    own.reached(only(own.due(NOBODY, 10.0)), ME, HERE, 10.1)
    assert own.due(NOBODY, 1e6) == []


@given(st.integers(1, 200), st.integers(0, 1000))
def test_failures_back_off_to_a_minute(failures: int, seed: int) -> None:
    own = queue(seed)
    own.hint(PEER, [THERE], 0.0)
    now = 0.0
    for number in range(failures):
        target = only(own.due(NOBODY, now))
        own.failed(target, now)
        wait_s = target.due_at - now
        expected = min(60.0, 2.0**number)
        assert 0.8 * expected <= wait_s <= 1.2 * expected
        now = target.due_at


def test_a_refusal_waits_a_minute_at_once() -> None:
    own = queue()
    own.hint(PEER, [THERE], 0.0)
    target = only(own.due(NOBODY, 0.0))
    own.failed(target, 0.0, refused=True)
    assert target.due_at >= 48.0


def test_news_end_the_waiting() -> None:
    own = queue()
    own.hint(PEER, [THERE], 0.0)
    own.failed(only(own.due(NOBODY, 0.0)), 0.0, refused=True)
    own.hint(PEER, [THERE], 1.0)
    assert own.due(NOBODY, 1.0) == [], "the same again is no news"
    own.hint(PEER, [THERE], 1.0, fresh=True)
    assert only(own.due(NOBODY, 1.0)).failures == 0


def test_a_new_address_is_news() -> None:
    own = queue()
    own.hint(PEER, [THERE], 0.0)
    own.failed(only(own.due(NOBODY, 0.0)), 0.0)
    own.hint(PEER, [ELSEWHERE], 0.6)
    assert set(only(own.due(NOBODY, 0.6)).addresses) == {THERE, ELSEWHERE}


def test_news_all_the_time_are_no_reason_to_dial_all_the_time() -> None:
    """Anybody on the LAN can announce a PC at one address after another."""
    own = queue()
    dials = 0
    for tick in range(1000):
        now = 0.01 * tick
        own.hint(PEER, [Address("192.168.1.2", 1 + tick)], now, fresh=True)
        for target in own.due(NOBODY, now):
            own.failed(target, now)
            dials += 1
    assert 18 <= dials <= 21


def test_a_seed_whose_pc_was_set_up_anew_is_taken_as_it_is() -> None:
    """Its key, and so its id, is another one now; the person named the address, not the id."""
    own = queue()
    own.seed(THERE, 0.0)
    own.reached(only(own.due(NOBODY, 0.0)), PEER, THERE, 0.1)
    target = only(own.due(NOBODY, 10.0))
    assert target.node == PEER
    own.failed(target, 10.0, refused=True)
    assert only(own.due(NOBODY, 11.3)).node is None
    own.failed(target, 12.0, refused=True)
    assert target.due_at >= 60.0, "of another fleet, then"


def test_a_restart_on_another_port_is_tried_before_the_stale_one() -> None:
    """J06: the record of the killed agent is still known."""
    own = queue()
    own.hint(PEER, [Address("192.168.1.2", 7000)], 0.0)
    own.reached(only(own.due(NOBODY, 0.0)), PEER, Address("192.168.1.2", 7000), 0.1)
    own.hint(PEER, [Address("192.168.1.2", 7001)], 5.0, fresh=True)
    assert only(own.due(NOBODY, 5.0)).addresses[0].port == 7001


def test_what_worked_is_tried_first() -> None:
    own = queue()
    own.hint(PEER, [THERE, ELSEWHERE], 0.0)
    own.reached(only(own.due(NOBODY, 0.0)), PEER, ELSEWHERE, 0.1)
    own.hint(PEER, [THERE, ELSEWHERE], 5.0)
    assert own.addresses(PEER)[0] == ELSEWHERE


def test_who_said_goodbye_is_left_in_peace_for_a_moment() -> None:
    own = queue()
    own.hint(PEER, [THERE], 0.0)
    own.reached(only(own.due(NOBODY, 0.0)), PEER, THERE, 0.1)
    own.rest(PEER, 10.0)
    assert own.due(NOBODY, 14.9) == []
    assert len(own.due(NOBODY, 15.1)) == 1


def test_a_flood_of_hints_is_bounded_and_seeds_stay() -> None:
    own = queue()
    own.seed(THERE, 0.0)
    for number in range(3 * MOST_TARGETS):
        own.hint(NodeId(f"n{number}"), [ELSEWHERE], 0.0)
    due: list[Target] = []
    now = 0.0
    while batch := own.due(NOBODY, now):
        assert len(batch) <= MOST_AT_ONCE
        for target in batch:
            own.failed(target, now)
        due += batch
    assert len(due) <= MOST_TARGETS
    assert any(target.is_seed for target in due)


def test_who_has_not_been_tried_yet_keeps_a_lone_pc_waiting() -> None:
    own = queue()
    assert not own.is_trying(NOBODY)
    own.hint(PEER, [THERE], 0.0)
    assert own.is_trying(NOBODY)
    assert not own.is_trying(frozenset({PEER}))
    own.failed(only(own.due(NOBODY, 0.0)), 1.0)
    assert not own.is_trying(NOBODY)
    assert [str(one) for one in own.failing()] == ["peer at 192.168.1.2:7000"]


@pytest.mark.parametrize("addresses", [[], [Address("10.0.0.1", n + 1) for n in range(99)]])
def test_odd_numbers_of_addresses(addresses: list[Address]) -> None:
    own = queue()
    own.hint(PEER, addresses, 0.0)
    assert all(len(target.addresses) == 16 for target in own.due(NOBODY, 0.0))
    assert len(own.addresses(PEER)) == min(16, len(addresses))
