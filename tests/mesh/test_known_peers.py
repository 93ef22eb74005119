"""Peers known from earlier: hints that may be missing or damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshinfer.core.fleet import Address
from meshinfer.core.ids import NodeId
from meshinfer.mesh.known_peers import MOST_KNOWN, KnownPeersFile


def test_they_are_there_after_a_restart(tmp_path: Path) -> None:
    known = {NodeId("a"): (Address("10.0.0.1", 7), Address("fd00::1", 7)), NodeId("b"): ()}
    KnownPeersFile(tmp_path / "peers.json").save(known)
    assert KnownPeersFile(tmp_path / "peers.json").load() == known


def test_the_newest_are_kept(tmp_path: Path) -> None:
    file = KnownPeersFile(tmp_path / "peers.json")
    nodes = [NodeId(f"n{number}") for number in range(MOST_KNOWN + 10)]
    file.save({node: (Address("10.0.0.1", 7),) for node in nodes})
    assert list(file.load()) == nodes[10:]


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b'{"a": 3}', b'{"a": [3]}', b'{"a": ["nonsense"]}', b"\xff", b'{"a": null}'],
)
def test_a_damaged_file_is_no_hint(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "peers.json").write_bytes(content)
    assert KnownPeersFile(tmp_path / "peers.json").load() == {}


def test_no_file_and_no_room_are_no_errors(tmp_path: Path) -> None:
    assert KnownPeersFile(tmp_path / "peers.json").load() == {}
    (tmp_path / "folder").write_text("a file where the folder belongs")
    KnownPeersFile(tmp_path / "folder" / "peers.json").save({NodeId("a"): ()})
