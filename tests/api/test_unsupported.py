"""A17: missing features are refused plainly, neutral values pass."""

from __future__ import annotations

import pytest

from meshinfer.api.unsupported import refuse_unsupported
from meshinfer.errors import InvalidRequest

TOOLS = [{"type": "function", "function": {"name": "f"}}]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"echo": False, "suffix": None, "tools": None, "structured_outputs": {}},
        {"tools": []},
        {"tools": [], "tool_choice": "auto"},
        {"tools": TOOLS, "tool_choice": "none"},
        {"metadata": {}, "something_new": [1], "ignore_eos": True, "min_tokens": 5},
    ],
)
def test_what_asks_for_nothing_passes(body: dict[str, object]) -> None:
    refuse_unsupported(body)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"audio": {}}, "audio"),
        ({"tools": TOOLS}, "tools"),
        ({"tools": TOOLS, "tool_choice": "auto"}, "tools"),
        ({"tools": TOOLS, "tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": {}}, "tools"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"echo": True}, "echo"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs"),
    ],
)
def test_what_would_be_pretended_is_refused(body: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        refuse_unsupported(body)
    assert caught.value.param == param
