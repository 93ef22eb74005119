"""What `meshinfer status` must not hide."""

from __future__ import annotations

from typing import Any

import pytest

from meshinfer.cli.status import render, stages_table


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


DRAFT = {"node": "b", "device": "CPU", "model": "small", "bytes": 350_000_000}


@pytest.mark.parametrize(
    ("draft", "line"),
    [
        (None, None),
        ({"state": "none", "why": ""}, None),
        (
            {"state": "none", "why": "small is not smaller than large"},
            "No draft model: small is not smaller than large.",
        ),
        ({"state": "none", "why": "It is gone."}, "No draft model: It is gone."),
        (
            {**DRAFT, "state": "serving", "why": ""},
            "draft model: small on anna (CPU), 350 MB, serving",
        ),
        (
            {**DRAFT, "node": "unknown-node", "state": "failed", "why": "It does not compile."},
            "draft model: small on unknown- (CPU), 350 MB, failed (It does not compile.)",
        ),
    ],
)
def test_the_draft_model_has_a_line(draft: dict[str, Any] | None, line: str | None) -> None:
    plan: dict[str, Any] = {
        "kind": "single",
        "why": "it fits.",
        "pipelines": [{"stages": []}],
        "draft": draft,
    }
    member = {"id": "b", "name": "anna"}
    text = stages_table({"plan": plan, "fleet": {"members": [member]}})
    assert ("draft model" in text.lower()) is (line is not None)
    assert line is None or text.splitlines()[-1] == line
