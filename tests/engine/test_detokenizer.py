"""C05: characters that are cut over tokens, at every place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshinfer.engine.detokenizer import Detokenizer

BYTES = {byte: bytes([byte]) for byte in range(256)}

TEXTS = {
    "chinese": "你好",
    "chinese_short": "聪明",
    "family": "👩‍👩‍👧‍👦",
    "accent": "é",
    "combining": "e\u0301",
    "thai": "สวัสดี",
    "arabic": "مرحبا",
    "flags": "🇩🇪🇯🇵",
    "mixed": "a你b👍c\n",
    "real_replacement": "x\ufffdy",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_every_cut_into_two_tokens_keeps_the_text(text: str) -> None:
    data = text.encode()
    for cut in range(len(data) + 1):
        stream = Detokenizer({0: data[:cut], 1: data[cut:]}, ()).stream()
        chunks = [stream.feed(0), stream.feed(1), stream.finish()]
        assert "".join(chunks) == text
        # The whole characters before the cut come at once, and no half.
        assert chunks[0] == data[:cut].decode(errors="ignore")
        assert chunks[2] == ""


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_token_a_byte_keeps_the_text(text: str) -> None:
    stream = Detokenizer(BYTES, ()).stream()
    chunks = [stream.feed(byte) for byte in text.encode()]
    assert "".join(chunks) == text
    assert all(len(chunk) <= 1 for chunk in chunks)


def test_ascii_is_never_withheld() -> None:
    stream = Detokenizer(BYTES, ()).stream()
    assert [stream.feed(byte) for byte in b"abc \n"] == ["a", "b", "c", " ", "\n"]


def test_ascii_behind_a_broken_character_comes_at_once() -> None:
    stream = Detokenizer(BYTES, ()).stream()
    assert [stream.feed(byte) for byte in b"\xe4\xbdA"] == ["", "", "\ufffdA"]


def test_what_can_never_be_a_character_is_replaced_at_once() -> None:
    stream = Detokenizer(BYTES, ()).stream()
    assert [stream.feed(byte) for byte in b"\xff\x80\xc0"] == ["\ufffd"] * 3


def test_finish_replaces_what_was_never_completed() -> None:
    stream = Detokenizer(BYTES, ()).stream()
    assert [stream.feed(byte) for byte in b"\xf0\x9f\x91"] == ["", "", ""]
    assert stream.finish() == "\ufffd"
    assert stream.finish() == ""


def test_special_and_unknown_tokens_have_no_text_and_break_no_character() -> None:
    stream = Detokenizer({**BYTES, 300: b"<|im_end|>"}, [300]).stream()
    assert [stream.feed(token) for token in (0xC3, 300, 999, 0xA9)] == ["", "", "", "é"]


def test_streams_are_independent() -> None:
    detokenizer = Detokenizer(BYTES, ())
    one, other = detokenizer.stream(), detokenizer.stream()
    assert (one.feed(0xC3), other.feed(0x41), one.feed(0xA9)) == ("", "A", "é")


@given(st.lists(st.binary(max_size=5), max_size=12))
def test_joined_chunks_are_the_full_decode_of_any_bytes(pieces: list[bytes]) -> None:
    stream = Detokenizer(dict(enumerate(pieces)), ()).stream()
    text = "".join(stream.feed(token) for token in range(len(pieces))) + stream.finish()
    assert text == b"".join(pieces).decode(errors="replace")
