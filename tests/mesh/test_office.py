"""A leader's books."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from meshinfer.core.ids import NO_EPOCH, Epoch, NodeId
from meshinfer.mesh.candidacy import Peer
from meshinfer.mesh.office import Office
from meshinfer.mesh.timing import ElectionTiming

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")
TIMING = ElectionTiming()


def office(now: float = 0.0) -> Office:
    return Office(Epoch(5, A), TIMING, now)


@given(st.floats(0.0, 1e9), st.floats(0.001, 10.0))
@example(1048576.37, 0.3)
def test_a_pc_that_was_never_asked_is_due_at_any_time(now: float, renew_s: float) -> None:
    """now - (now - 0.3) may be a little less than 0.3: such an office never asked a late joiner."""
    own = Office(Epoch(5, A), ElectionTiming(renew_s=renew_s), now)
    own.ask([B], now)
    assert own.due([B, C], now) == [C]


def test_everybody_is_asked_once_a_second() -> None:
    own = office()
    own.ask([B], 0.0)
    assert own.due([B], 0.9) == []
    assert own.due([B], 1.0) == [B]


def test_a_leader_without_followers_stands_for_ever() -> None:
    assert office().stands(1e6)


def test_it_gives_up_before_the_leases_end() -> None:
    own = office()
    number = own.ask([B], 10.0)
    own.granted(B, number)
    assert own.stands(10.0 + TIMING.demote_s)
    assert not own.stands(10.0 + TIMING.demote_s + 0.01)
    assert TIMING.demote_s < TIMING.lease_s


def test_a_late_grant_counts_from_its_question() -> None:
    own = office()
    first = own.ask([B], 10.0)
    own.ask([B], 13.0)
    own.granted(B, first)  # the answer to the old question arrives now
    assert not own.stands(14.5)


def test_one_follower_of_two_is_enough() -> None:
    own = office()
    for node, now in ((B, 10.0), (C, 13.0)):
        own.granted(node, own.ask([node], now))
    assert own.stands(16.0)
    assert own.followers(16.0) == {C}


def test_grants_of_unknown_rounds_do_not_count() -> None:
    own = office()
    own.granted(B, 99)
    assert own.followers(0.0) == frozenset()


@pytest.mark.parametrize("leave", [Office.drop, Office.deny])
def test_who_left_is_not_counted_on(leave: object) -> None:
    own = office()
    own.granted(B, own.ask([B], 10.0))
    leave(own, B)  # type: ignore[operator]
    assert own.stands(100.0)
    assert own.followers(10.0) == frozenset()


def test_a_denial_is_not_asked_again_at_once_but_a_new_start_is() -> None:
    own = office()
    own.ask([B], 10.0)
    own.deny(B)
    assert own.due([B], 10.1) == []
    own.drop(B)
    assert own.due([B], 10.1) == [B]


def test_a_new_epoch_asks_everybody_again() -> None:
    own = office()
    own.granted(B, own.ask([B], 10.0))
    own.successor = Epoch(9, A)
    own.succeed(10.1)
    assert own.epoch == Epoch(9, A)
    assert own.successor is None
    assert own.due([B], 10.1) == [B]
    assert own.followers(10.1) == frozenset()


def peer(
    lease: Epoch = NO_EPOCH, followers: int = 0, holds_model: bool = False, alive: bool = True
) -> Peer:
    return Peer(B, alive, holds_model, lease, followers)


@pytest.mark.parametrize(
    ("other", "holds_model", "yields"),
    [
        pytest.param(peer(), False, False, id="a follower or free PC"),
        pytest.param(peer(Epoch(4, B)), False, False, id="an older leader"),
        pytest.param(peer(Epoch(6, B)), False, False, id="a newer leader with fewer followers"),
        pytest.param(peer(Epoch(4, B), followers=2), False, True, id="more followers"),
        pytest.param(peer(Epoch(6, B), alive=False), False, False, id="not heard"),
        pytest.param(peer(holds_model=True), False, True, id="holds the model"),
        pytest.param(peer(Epoch(5, A), holds_model=True), False, True, id="my follower holds it"),
        pytest.param(peer(holds_model=True), True, False, id="both hold it"),
        pytest.param(peer(Epoch(6, B), 9), True, False, id="it holds nothing, I do"),
        pytest.param(
            peer(Epoch(6, C), holds_model=True), False, False, id="it follows somebody else"
        ),
    ],
)
def test_to_whom_a_leader_gives_way(other: Peer, holds_model: bool, yields: bool) -> None:
    own = office()
    own.granted(C, own.ask([C], 0.0))  # one follower
    assert own.yields_to(other, holds_model, 0.1) is yields


def test_of_two_leaders_without_followers_the_newer_stays() -> None:
    assert office().yields_to(peer(Epoch(6, B)), False, 0.0)
    assert not office().yields_to(peer(Epoch(4, B)), False, 0.0)
