"""What `meshinfer status` must not hide."""

from __future__ import annotations

from typing import Any

import pytest

from meshinfer.cli.status import render


@pytest.mark.parametrize(
    ("node", "is_told"),
    [({"hop_delay_ms": 20.0}, True), ({"hop_delay_ms": 0.0}, False), ({}, False)],
)
def test_an_artificial_delay_has_a_line(node: dict[str, Any], is_told: bool) -> None:
    document = {
        "node": {"id": "a", **node},
        "fleet": {"id": "fleet", "epoch": 1, "leader": None, "members": []},
    }
    assert ("--hop-delay adds 20 ms" in render(document)) is is_told
