from __future__ import annotations

from typing import Any

import pytest

from meshinfer.weights.end_tokens import end_tokens

SPECIAL = {"</s>": 2, "<|im_end|>": 7, "<|im_start|>": 6, "<|custom|>": 9}


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ([5], (2, 5, 7)),
        ([[5, 8]], (2, 5, 7, 8)),
        ([None], (2, 7)),
        ([], (2, 7)),
        ([None, 5, [8, 5]], (2, 5, 7, 8)),  # sources that contradict each other
        (["</s>"], (2, 7)),
        ([{"content": "<|custom|>", "lstrip": False}], (2, 7, 9)),
        (["no such token"], (2, 7)),
        ([-1, True], (2, 7)),
    ],
)
def test_the_union_of_all_sources(named: list[Any], expected: tuple[int, ...]) -> None:
    """C07: an id, a list, missing, only here, only there, contradicting."""
    assert end_tokens(named, "", SPECIAL) == expected


@pytest.mark.parametrize(
    "template",
    [
        "{{ message['content'] + '<|custom|>' }}",
        '{{ message["content"] + "<|custom|>" }}',
        "{{ message.content + '<|custom|>\\n' }}",
        "{{ message['content'] | trim + '<|custom|>' }}",
        "{{ message['content'] }}<|custom|>",
    ],
)
def test_what_a_template_puts_behind_a_message_ends_a_turn(template: str) -> None:
    assert end_tokens([], template, {"<|custom|>": 9, "<|other|>": 4}) == (9,)


def test_ordinary_words_and_beginnings_never_end_an_answer() -> None:
    template = "{{ '<|im_start|>' + message['role'] + message['content'] + '</p>' }}"
    assert end_tokens([], template, {"<|im_start|>": 6}) == ()
