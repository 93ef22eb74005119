"""Bytes as tokens."""

from __future__ import annotations

import pytest

from meshinfer.core.request import ChatMessage
from meshinfer.engine.detokenizer import Detokenizer
from meshinfer.engine.toy_tokenizer import BEGIN_TOKEN, END_TOKEN, ByteTokenizer
from meshinfer.errors import InvalidRequest


def test_text_comes_back() -> None:
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode_text("你好, é")
    assert ids[0] == BEGIN_TOKEN
    stream = Detokenizer(tokenizer.vocabulary(), tokenizer.special_tokens()).stream()
    assert "".join(map(stream.feed, ids)) == "你好, é"


def test_a_chat_has_one_begin_and_ends_for_the_answer() -> None:
    ids = ByteTokenizer().encode_chat([ChatMessage("system", "a"), ChatMessage("user", "b")])
    assert ids.count(BEGIN_TOKEN) == 1
    assert ids.count(END_TOKEN) == 2
    assert bytes(ids[-11:]) == b"assistant: "


def test_lone_surrogates_are_an_invalid_request() -> None:
    with pytest.raises(InvalidRequest) as caught:
        ByteTokenizer().encode_text("\ud800")
    assert caught.value.param == "prompt"
