"""A14, A23: messages and their content."""

from __future__ import annotations

import pytest

from meshinfer.api.messages import parse_messages
from meshinfer.core.request import ChatMessage
from meshinfer.errors import InvalidRequest


def text(value: object) -> dict[str, object]:
    return {"type": "text", "text": value}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("hi", "hi"),
        ("", ""),
        ([text("hi")], "hi"),
        ([text("a"), text(""), text("b")], "ab"),
    ],
)
def test_content_becomes_text(content: object, expected: str) -> None:
    assert parse_messages([{"role": "user", "content": content}]) == (
        ChatMessage("user", expected),
    )


def test_roles_and_forms_may_be_mixed() -> None:
    messages = parse_messages(
        [
            {"role": "developer", "content": "be short"},
            {"role": "user", "content": [text("hi")], "name": "anna"},
            {"role": "assistant", "content": "yes?", "tool_calls": None},
            {"role": "tool", "content": "42", "tool_call_id": "x"},
        ]
    )
    assert [one.role for one in messages] == ["system", "user", "assistant", "tool"]
    assert [one.content for one in messages] == ["be short", "hi", "yes?", "42"]


@pytest.mark.parametrize(
    "messages",
    [
        None,
        [],
        {},
        "hi",
        [{}],
        [None],
        ["hi"],
        [{"role": "user"}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": 5}],
        [{"role": "user", "content": []}],
        [{"role": "user", "content": ["hi"]}],
        [{"role": "user", "content": [{"type": "text"}]}],
        [{"role": "user", "content": [text(None)]}],
        [{"role": "user", "content": [{"text": "hi"}]}],
        [{"role": "user", "content": [{"type": ["text"], "text": "hi"}]}],
        [{"role": "user", "content": "half \ud83d"}],
        [{"role": "user", "content": [text("\udc4b half")]}],
        [{"content": "hi"}],
        [{"role": "", "content": "hi"}],
        [{"role": "User", "content": "hi"}],
        [{"role": ["user"], "content": "hi"}],
        [{"role": "function", "content": "hi"}],
        [{"role": "assistant", "content": "", "tool_calls": [{"id": "x"}]}],
        [{"role": "user", "content": "hi"}] * 8193,
    ],
)
def test_malformed_messages_are_refused(messages: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_messages(messages)
    assert caught.value.param == "messages"


def test_images_are_refused_by_name_and_place() -> None:
    parts = [text("what is this?"), {"type": "image_url", "image_url": {"url": "data:x"}}]
    with pytest.raises(InvalidRequest, match=r"messages\[1\]\.content\[1\].*not supported") as it:
        parse_messages([{"role": "user", "content": "a"}, {"role": "user", "content": parts}])
    assert it.value.param == "messages"
