"""Every wait of a PC without a leader has a reason and an end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshinfer.core.ids import NO_EPOCH, Epoch, NodeId
from meshinfer.mesh.candidacy import Peer
from meshinfer.mesh.timing import ElectionTiming
from meshinfer.mesh.waiting import Reason, Waiting, reason_to_wait

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")
TIMING = ElectionTiming()


def peer(node: NodeId, lease: Epoch = NO_EPOCH, holds_model: bool = False) -> Peer:
    return Peer(node, True, holds_model, lease)


@pytest.mark.parametrize(
    ("me", "alive", "reason"),
    [
        pytest.param((A, False), [], Reason.LONE, id="nobody"),
        pytest.param((A, False), [peer(B)], Reason.MINE, id="I am first"),
        pytest.param((B, False), [peer(A)], Reason.BETTER, id="another is first"),
        pytest.param((A, False), [peer(B, holds_model=True)], Reason.BETTER, id="it has the model"),
        pytest.param((A, False), [peer(B, Epoch(3, B))], Reason.LEADER, id="it leads"),
        pytest.param((A, False), [peer(B, Epoch(3, C))], Reason.LEADER, id="it follows a third"),
        pytest.param((A, False), [peer(B, Epoch(3, A))], Reason.MINE, id="it followed my old self"),
    ],
)
def test_the_reason(me: tuple[NodeId, bool], alive: list[Peer], reason: Reason) -> None:
    assert reason_to_wait(me, alive, NO_EPOCH) is reason


@pytest.mark.parametrize(
    ("reason", "patience_s"),
    [
        (Reason.LONE, TIMING.lone_s),
        (Reason.LEADER, TIMING.await_leader_s),
        (Reason.BETTER, TIMING.await_better_s),
        (Reason.MINE, TIMING.settle_s),
    ],
)
def test_each_reason_has_its_deadline(reason: Reason, patience_s: float) -> None:
    waiting = Waiting(TIMING, 10.0)
    assert not waiting.over(reason, 10.0, False, jitter=0.0)
    assert not waiting.over(reason, 10.0 + patience_s - 0.01, False, jitter=0.0)
    assert waiting.over(reason, 10.0 + patience_s + 0.01, False, jitter=0.0)


def test_a_lone_pc_waits_longer_while_it_dials() -> None:
    waiting = Waiting(TIMING, 10.0)
    waiting.over(Reason.LONE, 10.0, True, jitter=0.0)
    assert not waiting.over(Reason.LONE, 10.0 + TIMING.lone_dialling_s - 0.1, True, jitter=0.0)
    assert waiting.over(Reason.LONE, 10.0 + TIMING.lone_dialling_s, True, jitter=0.0)


def test_jitter_spreads_candidates() -> None:
    waiting = Waiting(TIMING, 10.0)
    waiting.over(Reason.MINE, 10.0, False, jitter=0.99)
    assert not waiting.over(Reason.MINE, 10.0 + TIMING.settle_s + 0.2, False, jitter=0.0)


@given(st.lists(st.sampled_from(Reason), min_size=100, max_size=100), st.booleans())
def test_reasons_that_change_all_the_time_end_too(reasons: list[Reason], dialling: bool) -> None:
    waiting = Waiting(TIMING, 0.0)
    outcomes = [
        waiting.over(reason, 0.1 * number, dialling, jitter=0.5)
        for number, reason in enumerate(reasons)
    ]
    assert any(outcomes)
