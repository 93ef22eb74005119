"""The status as Prometheus reads it."""

from __future__ import annotations

from typing import Any

from meshinfer.api.exposition import exposition
from meshinfer.node.metrics import NodeMetrics

MEMBER = {"state": "alive"}
STATUS: dict[str, Any] = {
    "node": {"role": "leader", "loop_lag_ms": 3.0},
    "fleet": {"members": [MEMBER, MEMBER, {"state": "suspect"}], "epoch": 7},
    "model": {"state": "ready"},
    "serving": {
        "running": 3,
        "waiting": 2,
        "cache_used": 0.25,
        "cache_kept": 0.5,
        "steps": 10,
        "tokens": 30,
        "wire_ms": 0.5,
        "speculation": {
            "proposed": 9,
            "accepted": 4,
            "draft_s": 0.25,
            "decisions": {"plain": 3, "held": 1},
        },
        "stages": [{"compute_ms": 40.0, "wait_ms": 1.0, "queue_ms": 0.1, "handle_ms": 0.3}],
    },
}


def test_a_serving_leader() -> None:
    lines = exposition(NodeMetrics(lambda: STATUS).samples()).splitlines()
    assert 'meshinfer_members{state="alive"} 2' in lines
    assert 'meshinfer_members{state="dead"} 0' in lines
    assert "meshinfer_leads 1" in lines
    assert "meshinfer_loop_lag_seconds 0.003" in lines
    assert "meshinfer_ready 1" in lines
    assert "meshinfer_sequences_waiting 2" in lines
    assert "meshinfer_ring_tokens_total 30" in lines
    assert "meshinfer_ring_hop_seconds 0.0005" in lines
    assert "meshinfer_drafts_accepted_total 4" in lines
    assert 'meshinfer_speculation_decisions_total{kind="held"} 1' in lines
    assert 'meshinfer_stage_seconds{stage="0",part="compute"} 0.04' in lines


def test_a_pc_without_a_fleet_shows_itself() -> None:
    status = STATUS | {"node": {"role": "member", "loop_lag_ms": 0.0}, "model": None, "serving": {}}
    text = exposition(NodeMetrics(lambda: status).samples())
    assert "meshinfer_leads 0" in text
    assert "meshinfer_ready 0" in text
    assert "sequences" not in text
