"""Reasons in a line, whatever llguidance wrote below."""

from __future__ import annotations

import pytest

from meshinfer.engine.grammar_source import short_reason


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("Invalid type: blah", "Invalid type: blah"),
        ("regex parse error:\n    a(\n     ^\nerror: unclosed group",
         "regex parse error: unclosed group"),
        ("panic: missing prefix\n<backtrace>\n   0: <unknown>", "panic: missing prefix"),
        ("lexer error: too many states\n<non-verbose/>", "lexer error: too many states"),
        ('at 1(8): unknown name: "b"\n   1 | start: b\n', 'at 1(8): unknown name: "b"'),
        ("x" * 900 + "\nerror: " + "y" * 900, "x" * 200 + " " + "y" * 200),
        ("", "no reason given"),
    ],
)  # fmt: skip
def test_a_reason_is_one_short_line(said: str, reason: str) -> None:
    assert short_reason(said) == reason
