"""Who should lead, and when a campaign is over."""

from __future__ import annotations

import pytest

from meshinfer.core.ids import NO_EPOCH, Epoch, NodeId
from meshinfer.mesh.candidacy import Candidacy, best

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")


@pytest.mark.parametrize(
    ("candidates", "newest", "expected"),
    [
        pytest.param([(B, False), (A, False)], NO_EPOCH, A, id="the smallest id"),
        pytest.param([(A, False), (B, True)], NO_EPOCH, B, id="who holds the model"),
        pytest.param([(A, False), (B, False)], Epoch(3, B), B, id="who led last"),
        pytest.param([(A, True), (B, False)], Epoch(3, B), A, id="the model before office"),
        pytest.param([(A, True), (B, True)], Epoch(3, B), B, id="office among holders"),
    ],
)
def test_the_order(candidates: list[tuple[NodeId, bool]], newest: Epoch, expected: NodeId) -> None:
    assert best(candidates, newest) == expected
    assert best(reversed(candidates), newest) == expected


def test_nothing_is_decided_before_the_disk_has_it() -> None:
    assert not Candidacy(Epoch(1, A)).complete(1e9, 1.0)


def test_nobody_to_ask_is_decided_at_once() -> None:
    campaign = Candidacy(Epoch(1, A))
    campaign.start(frozenset(), 10.0)
    assert campaign.complete(10.0, 1.0)


def test_it_ends_with_the_last_answer_or_in_time() -> None:
    campaign = Candidacy(Epoch(1, A))
    campaign.start(frozenset({B, C}), 10.0)
    campaign.grant(B)
    assert not campaign.complete(10.5, 1.0)
    assert campaign.complete(11.0, 1.0)
    campaign.deny(C)
    assert campaign.complete(10.5, 1.0)
    assert campaign.granted == {B}


def test_a_grant_of_a_pc_that_died_is_void() -> None:
    campaign = Candidacy(Epoch(1, A))
    campaign.start(frozenset({B}), 10.0)
    campaign.grant(B)
    campaign.drop(B)
    assert campaign.granted == set()
    assert campaign.complete(10.0, 1.0)
