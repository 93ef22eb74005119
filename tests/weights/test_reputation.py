from __future__ import annotations

import pytest

from meshinfer.core.ids import NodeId
from meshinfer.errors import (
    MeshInferError,
    PeerLost,
    ProtocolViolation,
    ShardCorrupt,
    TimedOut,
    TrustRefused,
    VersionMismatch,
)
from meshinfer.weights.patience import Patience
from meshinfer.weights.reputation import Reputation

PEER = NodeId("peer")
PATIENCE = Patience(wrong_answers=3, failures=4)


def reputation() -> tuple[Reputation, list[str]]:
    heard: list[str] = []
    return Reputation(PATIENCE, lambda node, why: heard.append(f"{node}: {why}")), heard


@pytest.mark.parametrize("error", [PeerLost("gone"), TimedOut("silent")])
def test_so_many_failures_in_a_row_and_no_more(error: MeshInferError) -> None:
    one, heard = reputation()
    assert [one.failed(PEER, error) for _ in range(4)] == [None, None, None, error]
    assert heard == []


def test_a_piece_between_them_is_a_new_beginning() -> None:
    one, _ = reputation()
    for _ in range(10):
        assert one.failed(PEER, PeerLost("gone")) is None
        assert one.failures == 1
        one.gave()


@pytest.mark.parametrize("error", [TrustRefused("no"), VersionMismatch("old"), ShardCorrupt("bad")])
def test_what_will_not_change_is_not_tried_again(error: MeshInferError) -> None:
    one, _ = reputation()
    assert one.failed(PEER, error) is error


def test_three_lies_are_the_end_whatever_was_right_between_them() -> None:
    one, heard = reputation()
    for number in range(2):
        one.lied(PEER, f"lie {number}")
        one.gave()
        assert not one.is_liar
    one.lied(PEER, "lie 2")
    assert one.is_liar
    assert heard == ["peer: lie 0", "peer: lie 1", "peer: lie 2"]
    reason = one.failed(PEER, PeerLost("gone"))
    assert isinstance(reason, ShardCorrupt)
    assert "3 wrong answers" in reason.cause


def test_a_broken_rule_is_a_lie() -> None:
    one, heard = reputation()
    error = ProtocolViolation("not asked for")
    assert [one.failed(PEER, error) for _ in range(3)] == [None, None, error]
    assert heard == ["peer: not asked for"] * 3
