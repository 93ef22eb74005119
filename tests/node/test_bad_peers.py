"""PCs that sent wrong pieces are named once, with how often."""

from __future__ import annotations

from meshinfer.core.ids import NodeId
from meshinfer.node.bad_peers import BadPeers

GOOD_CLOCK = 1_796_040_000.0  # 2026-11-30 12:00 UTC


def test_nobody_is_named_while_all_is_well() -> None:
    assert BadPeers(lambda: GOOD_CLOCK).hints() == []


def test_each_pc_is_named_with_how_often_and_what_to_do() -> None:
    book = BadPeers(lambda: GOOD_CLOCK)
    for node in ("b" * 52, "a" * 52, "b" * 52):
        book.note(NodeId(node), "its bytes have another digest")
    first, second = book.hints()
    assert first.startswith("PC aaaaaaaa sent 1 wrong pieces of stages")
    assert second.startswith("PC bbbbbbbb sent 2 wrong pieces of stages")
    assert "disk and memory checked" in second
