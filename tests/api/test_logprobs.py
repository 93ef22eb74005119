"""A26: log-probabilities of tokens that are parts of characters, or practically impossible."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshinfer.api.logprobs import begun, chat_shape, text_shape
from meshinfer.core.request import TokenLogprob


@st.composite
def cut_texts(draw: st.DrawFn) -> tuple[str, list[bytes]]:
    """A text, and its bytes in pieces of any length."""
    text = draw(st.text("aé€👋\u0301", max_size=12))
    rest, pieces = text.encode(), []
    while rest:
        length = draw(st.integers(1, 5))
        pieces.append(rest[:length])
        rest = rest[length:]
    return text, pieces


@given(cut_texts())
def test_bytes_add_up_and_offsets_point_at_the_right_character(
    cut: tuple[str, list[bytes]],
) -> None:
    text, pieces = cut
    drawn = [TokenLogprob(piece, -1.0, ()) for piece in pieces]
    content = chat_shape(drawn)["content"]
    assert b"".join(bytes(one["bytes"]) for one in content) == text.encode()
    assert sum(map(begun, pieces)) == len(text)
    done = b""
    for piece, offset in zip(pieces, text_shape(drawn, 0)["text_offset"], strict=True):
        assert offset == len(done.decode("utf-8", "ignore"))
        done += piece


@given(cut_texts(), st.integers(0, 20))
def test_offsets_go_on_where_the_chunk_before_ended(
    cut: tuple[str, list[bytes]], place: int
) -> None:
    drawn = [TokenLogprob(piece, -1.0, ()) for piece in cut[1]]
    first, second = drawn[:place], drawn[place:]
    characters = sum(begun(one.token) for one in first)
    whole, start = text_shape(drawn, 0), text_shape(first, 0)
    assert (
        start["text_offset"] + text_shape(second, characters)["text_offset"] == whole["text_offset"]
    )


@pytest.mark.parametrize("logprob", [-math.inf, math.nan, -1e300])
def test_every_number_is_json(logprob: float) -> None:
    drawn = [TokenLogprob(b"a", logprob, ((b"b", logprob),))]
    for document in (chat_shape(drawn), text_shape(drawn, 0)):
        assert "-9999.0" in json.dumps(document, allow_nan=False)


def test_bytes_that_are_no_text_at_all() -> None:
    drawn = [TokenLogprob(b"\x80", -1.0, ()), TokenLogprob(b"", -1.0, ())]
    assert text_shape(drawn, 0)["text_offset"] == [0, 0]
    assert chat_shape(drawn)["content"][1]["bytes"] == []
