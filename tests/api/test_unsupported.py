"""A17, A26: missing features are refused plainly, neutral values pass."""

from __future__ import annotations

import pytest

from meshinfer.api.unsupported import refuse_unsupported
from meshinfer.errors import InvalidRequest

TOOLS = [{"type": "function", "function": {"name": "f"}}]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"n": 1},
        {"n": None, "logprobs": None, "tools": None, "response_format": None},
        {"logprobs": False, "top_logprobs": 0},
        {"frequency_penalty": 0.0, "presence_penalty": 0, "logit_bias": {}},
        {"response_format": {"type": "text"}},
        {"tools": []},
        {"tools": [], "tool_choice": "auto"},
        {"tools": TOOLS, "tool_choice": "none"},
        {"user": "anna", "metadata": {}, "something_new": [1]},
    ],
)
def test_what_asks_for_nothing_passes(body: dict[str, object]) -> None:
    refuse_unsupported(body)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"n": 2}, "n"),
        ({"n": 0}, "n"),
        ({"n": True}, "n"),
        ({"n": "1"}, "n"),
        ({"best_of": 3}, "best_of"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": 0}, "logprobs"),  # /v1/completions: the drawn token's own
        ({"top_logprobs": 5}, "top_logprobs"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"logit_bias": {"50256": -100}}, "logit_bias"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"response_format": "text"}, "response_format"),
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
    ],
)
def test_what_would_be_pretended_is_refused(body: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        refuse_unsupported(body)
    assert caught.value.param == param
