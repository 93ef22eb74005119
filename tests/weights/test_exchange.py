from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from meshinfer.core.ids import NodeId
from meshinfer.weights.exchange import Exchange
from meshinfer.weights.store import Store


def test_each_agent_has_its_own_news_and_limit(tmp_path: Path) -> None:
    """Two agents of one process, as tests run them, do not hear of each other's pulls."""
    with ThreadPoolExecutor(1) as executor:
        one, two = (Exchange(Store(tmp_path / name), executor) for name in "ab")
    assert one.incoming is not two.incoming
    assert one.upload is not two.upload
    one.on_bad_peer(NodeId("x"), "nobody wants to know")
    assert one.random(1) == 0
