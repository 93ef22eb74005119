"""C12: one beginning at most. Here with a tokenizer that scripts openvino_genai's; the real one
runs in tests/real."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from meshinfer.core.request import ChatMessage
from meshinfer.engine.tokenizer import GenAiTokenizer
from meshinfer.errors import ContextTooLong, InvalidRequest, StageFailed

BEGIN, LIMIT = 1, 50

LLAMA = "<s>[{role}] {content}"
QWEN = "[{role}] {content}"


class Scripted:
    """A token a word; `<s>` is the beginning, added on request unless `begin` is off."""

    def __init__(self, template: str = LLAMA, begin: bool = True, refusal: str = "") -> None:
        self.chat_template = template
        self._begin = begin
        self._refusal = refusal
        self._words = {"<s>": BEGIN}

    def apply_chat_template(
        self, history: list[dict[str, str]], add_generation_prompt: bool
    ) -> str:
        assert add_generation_prompt
        if self._refusal:
            raise RuntimeError(self._refusal)
        begin = "<s> " if self.chat_template.startswith("<s>") else ""
        turn = self.chat_template.removeprefix("<s>")
        return begin + " ".join(turn.format(**message) for message in history) + " [assistant]"

    def encode(self, text: str, add_special_tokens: bool = True) -> Any:
        text.encode()  # as pybind does, which raises for lone surrogates
        words = text.split(maxsplit=LIMIT + 5)
        ids = [self._words.setdefault(word, len(self._words) + 1) for word in words]
        if add_special_tokens and self._begin:
            ids.insert(0, BEGIN)
        return SimpleNamespace(input_ids=SimpleNamespace(data=np.array([ids[:LIMIT]], np.int64)))

    def get_vocab(self) -> dict[bytes, int]:
        return {b"<s>": 1, b" hi": 2, b"\xe4\xbd": 3}

    def decode(self, ids: list[list[int]], skip_special_tokens: bool = True) -> list[str]:
        text = {1: "<s>", 2: " hi", 3: ""}
        return ["" if skip_special_tokens and one[0] == 1 else text[one[0]] for one in ids]

    def get_eos_token_id(self) -> int:
        return -1


CHAT = [ChatMessage("system", "be kind"), ChatMessage("user", "hello you")]


@pytest.mark.parametrize("begin", [True, False])
@pytest.mark.parametrize(("template", "begins"), [(LLAMA, 1), (QWEN, 0)])
def test_a_chat_begins_as_its_template_says(template: str, begins: int, begin: bool) -> None:
    ids = GenAiTokenizer(Scripted(template, begin)).encode_chat(CHAT)
    assert ids.count(BEGIN) == begins
    assert (ids[0] == BEGIN) == bool(begins)


@pytest.mark.parametrize("begin", [True, False])
def test_plain_text_begins_as_the_tokenizer_does(begin: bool) -> None:
    ids = GenAiTokenizer(Scripted(begin=begin)).encode_text("hello you")
    assert ids.count(BEGIN) == int(begin)
    assert len(ids) == 2 + begin


def test_a_model_without_a_template_cannot_chat() -> None:
    with pytest.raises(InvalidRequest, match="no chat template") as caught:
        GenAiTokenizer(Scripted("")).encode_chat(CHAT)
    assert caught.value.param == "messages"


def test_the_templates_reason_is_told() -> None:
    said = "Exception from a.cpp:855:\nMinja's error: Roles must alternate at row 1, column 59:\n{%"
    with pytest.raises(InvalidRequest, match="these messages: Roles must alternate"):
        GenAiTokenizer(Scripted(refusal=said)).encode_chat(CHAT)


@pytest.mark.parametrize("said", ["Minja's error: bad hello you at row 1", "something else"])
def test_no_error_quotes_a_message(said: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        GenAiTokenizer(Scripted(refusal=said)).encode_chat(CHAT)
    assert str(caught.value).startswith("The model's chat template refuses these messages. ")


def test_lone_surrogates_are_an_invalid_request() -> None:
    with pytest.raises(InvalidRequest) as caught:
        GenAiTokenizer(Scripted()).encode_text("a \ud800")
    assert caught.value.param == "prompt"


def test_a_prompt_that_the_tokenizer_would_cut_is_refused() -> None:
    """openvino_genai's GGUF tokenizer keeps 8192 tokens of any text, and says nothing."""
    tokenizer = GenAiTokenizer(Scripted(begin=False))
    assert len(tokenizer.encode_text("a " * (LIMIT - 1))) == LIMIT - 1
    for words in (LIMIT, LIMIT + 1, 10 * LIMIT):
        with pytest.raises(ContextTooLong, match="50 tokens or more"):
            tokenizer.encode_text("a " * words)


def test_vocabulary_special_and_end_tokens() -> None:
    tokenizer = GenAiTokenizer(Scripted())
    assert tokenizer.vocabulary() == {1: b"<s>", 2: b" hi", 3: b"\xe4\xbd"}
    assert tokenizer.special_tokens() == {1}
    assert tokenizer.end_token() is None


@pytest.mark.openvino
def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(StageFailed, match="tokenizer cannot be loaded"):
        GenAiTokenizer.load(tmp_path)
