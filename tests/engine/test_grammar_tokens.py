"""Text that a grammar leaves no choice about is written in tokens whose bytes are that text."""

from __future__ import annotations

import pytest

from meshinfer.engine.grammar_tokens import ForcedText, text_tokens
from meshinfer.errors import InvalidRequest

BEGIN, END = 5, 6
VOCABULARY = {0: b"a", 1: b"ab", 2: b"b", 3: b"ab", 4: b" ab", BEGIN: b"<s>", END: b"</s>", 9: b"c"}
TOKENS = text_tokens(VOCABULARY, 9, {BEGIN, END})


def refuses(text: str) -> list[int]:
    raise InvalidRequest("no")


def test_only_text_has_bytes() -> None:
    assert TOKENS == (b"a", b"ab", b"b", b"ab", b" ab", b"", b"", b"", b"")
    assert text_tokens({0: b"\xff", 1: b"\xffx", 2: b"\xfe"}, 3, ()) == (b"", b"", b"\xfe")


@pytest.mark.parametrize(
    ("encoded", "used"),
    [
        ([0, 2], [0, 2]),  # the tokenizer's own way
        ([BEGIN, 3], [3]),  # without the beginning that it adds
        ([4], [1]),  # a space that is not in the text
        ([0, BEGIN, 2], [1]),  # a special token is never text
        ([0, 77, 2], [1]),  # nor one that does not exist
        ([], [1]),
    ],
)
def test_forced_text_is_encoded_or_written_longest_first(
    encoded: list[int], used: list[int]
) -> None:
    assert ForcedText(TOKENS, lambda text: encoded)("ab") == used


def test_text_that_looks_like_a_special_token_is_not_one() -> None:
    tokens = text_tokens({0: b"<", 1: b"s", 2: b">", BEGIN: b"<s>"}, 6, {BEGIN})
    assert ForcedText(tokens, lambda text: [BEGIN])("<s>") == [0, 1, 2]


def test_longest_first_takes_the_lower_id_and_stops_at_an_unknown_byte() -> None:
    forced = ForcedText(TOKENS, refuses)
    assert forced("abaab ab") == [1, 0, 1, 4]
    assert forced("abcab") == [1]


def test_the_end_token_is_behind_the_models_own() -> None:
    forced = ForcedText(TOKENS, refuses)
    assert forced.eos_token_id == len(TOKENS) == 9
    assert forced.tokens[9].startswith(b"\xff")
