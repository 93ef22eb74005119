"""No PC speaks of another's leadership as its own."""

from __future__ import annotations

import pytest

from meshinfer.core.ids import Epoch, NodeId
from meshinfer.errors import ProtocolViolation
from meshinfer.mesh.claim import ElectionMessage, claimed_epoch
from meshinfer.wire.election import Campaign, Deny, Grant, Renew, Resign

ME, PEER, THIRD = NodeId("me"), NodeId("peer"), NodeId("third")


@pytest.mark.parametrize(
    "message",
    [
        Campaign(Epoch(3, PEER)),
        Renew(Epoch(3, PEER), 1),
        Resign(Epoch(3, PEER)),
        Grant(Epoch(3, ME), 0),
        Deny(Epoch(3, ME), Epoch(9, THIRD), True),
    ],
)
def test_own_words(message: ElectionMessage) -> None:
    assert claimed_epoch(message, ME, PEER).counter == 3


@pytest.mark.parametrize("leader", [ME, THIRD])
def test_questions_for_another(leader: NodeId) -> None:
    epoch = Epoch(3, leader)
    for message in (Campaign(epoch), Renew(epoch, 1), Resign(epoch)):
        with pytest.raises(ProtocolViolation):
            claimed_epoch(message, ME, PEER)


@pytest.mark.parametrize("leader", [PEER, THIRD])
def test_answers_to_another(leader: NodeId) -> None:
    epoch = Epoch(3, leader)
    for message in (Grant(epoch, 0), Deny(epoch, Epoch(1, ME), False)):
        with pytest.raises(ProtocolViolation):
            claimed_epoch(message, ME, PEER)
