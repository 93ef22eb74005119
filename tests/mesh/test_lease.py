"""A PC's lease: one holder at a time, epochs that only grow."""

from __future__ import annotations

import pytest

from meshinfer.core.ids import NO_EPOCH, Epoch, NodeId
from meshinfer.mesh.lease import NodeLease

A, B = NodeId("a"), NodeId("b")


def lease(accepted: Epoch = NO_EPOCH) -> NodeLease:
    return NodeLease(accepted, 5.0)


def test_it_is_free_at_first_and_after_its_time() -> None:
    own = lease()
    assert own.held(0.0) == NO_EPOCH
    own.grant(Epoch(1, A), 10.0)
    assert own.held(14.999) == Epoch(1, A)
    assert own.held(15.0) == NO_EPOCH


def test_renewing_prolongs() -> None:
    own = lease()
    own.grant(Epoch(1, A), 10.0)
    own.grant(Epoch(1, A), 14.0)
    assert own.held(18.0) == Epoch(1, A)


@pytest.mark.parametrize(
    ("epoch", "now", "may"),
    [
        pytest.param(Epoch(4, A), 12.0, True, id="same"),
        pytest.param(Epoch(5, A), 12.0, True, id="newer of the holder"),
        pytest.param(Epoch(3, A), 12.0, False, id="older of the holder"),
        pytest.param(Epoch(9, B), 12.0, False, id="newer of another, while held"),
        pytest.param(Epoch(9, B), 15.0, True, id="newer of another, when free"),
        pytest.param(Epoch(4, B), 15.0, True, id="same counter, greater leader"),
        pytest.param(Epoch(3, B), 15.0, False, id="older of another, when free"),
        pytest.param(NO_EPOCH, 15.0, False, id="no epoch"),
    ],
)
def test_who_gets_it(epoch: Epoch, now: float, may: bool) -> None:
    own = lease()
    own.grant(Epoch(4, A), 10.0)
    assert own.may_grant(epoch, now) is may


def test_what_the_disk_holds_counts_after_a_restart() -> None:
    own = lease(Epoch(7, B))
    assert not own.may_grant(Epoch(7, A), 0.0)
    assert own.may_grant(Epoch(7, B), 0.0)
    assert own.may_grant(Epoch(8, A), 0.0)


def test_a_grant_that_is_not_allowed_is_a_bug() -> None:
    own = lease()
    own.grant(Epoch(4, A), 10.0)
    with pytest.raises(AssertionError):
        own.grant(Epoch(5, B), 11.0)


def test_release_frees_for_others_but_not_for_older_epochs() -> None:
    own = lease()
    own.grant(Epoch(4, A), 10.0)
    own.release(B)
    assert own.held(11.0) == Epoch(4, A)
    own.release(A)
    assert own.held(11.0) == NO_EPOCH
    assert not own.may_grant(Epoch(3, B), 11.0)
    assert own.may_grant(Epoch(5, B), 11.0)
