"""Text to token ids and back to bytes, by openvino_genai's tokenizer.

A model folder goes in; ids and a vocabulary come out. Called from a worker thread, never on the
event loop: a long prompt takes seconds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from meshinfer.core.request import ChatMessage
from meshinfer.errors import ContextTooLong, InvalidRequest, StageFailed

_PROBE_WORDS = 1 << 18
"""Above the context of any model that a stage here can hold; encoding them takes 50 ms."""

_TEMPLATE_REASON = re.compile(r"Minja's error: (.+?) at row \d+")


class Tokenizer(Protocol):
    def encode_chat(self, messages: Sequence[ChatMessage]) -> list[int]:
        """Ids of a conversation in the model's own template, ready for an answer.

        Raises InvalidRequest: the template refuses the messages, or there is none. ContextTooLong:
        the tokenizer would cut them.
        """
        ...

    def encode_text(self, prompt: str) -> list[int]:
        """Ids of plain text, with the tokenizer's own beginning-of-sequence token if it has one.

        Raises InvalidRequest: the text is not valid Unicode. ContextTooLong: the tokenizer would
        cut it.
        """
        ...

    def vocabulary(self) -> dict[int, bytes]:
        """The bytes of every token; parts of characters are not decoded."""
        ...

    def special_tokens(self) -> frozenset[int]:
        """Tokens that are never shown."""
        ...

    def end_token(self) -> int | None:
        """The tokenizer's own end-of-sequence token; a model may have more."""
        ...


class GenAiTokenizer:
    """The tokenizer and template of a model folder. Made by `load`."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._most_tokens = _most_tokens(tokenizer)

    @classmethod
    def load(cls, folder: Path) -> GenAiTokenizer:
        """Blocks for a second. Raises StageFailed when the folder holds no tokenizer."""
        import openvino_genai

        try:
            return cls(openvino_genai.Tokenizer(str(folder)))
        except (RuntimeError, ValueError) as error:
            raise StageFailed(
                "The model's tokenizer cannot be loaded.", "Fetch the model again."
            ) from error

    def encode_chat(self, messages: Sequence[ChatMessage]) -> list[int]:
        if not self._tokenizer.chat_template:
            raise InvalidRequest(
                "This model has no chat template.", "Use /v1/completions.", param="messages"
            )
        history = [{"role": message.role, "content": message.content} for message in messages]
        try:
            text = self._tokenizer.apply_chat_template(history, add_generation_prompt=True)
        except (RuntimeError, TypeError, ValueError) as error:
            raise _template_refusal(error, messages) from error
        # The template has written what the model wants at the beginning: a tokenizer that adds its
        # own would make it two (llama-cpp-python PR 1439).
        return self._encode(text, add_special_tokens=False, param="messages")

    def encode_text(self, prompt: str) -> list[int]:
        return self._encode(prompt, add_special_tokens=True, param="prompt")

    def vocabulary(self) -> dict[int, bytes]:
        return {int(token): data for data, token in self._tokenizer.get_vocab().items()}

    def special_tokens(self) -> frozenset[int]:
        ids = sorted(int(token) for token in self._tokenizer.get_vocab().values())
        alone = [[token] for token in ids]
        shown = self._tokenizer.decode(alone)
        full = self._tokenizer.decode(alone, skip_special_tokens=False)
        return frozenset(
            token
            for token, text, all_text in zip(ids, shown, full, strict=True)
            if all_text and not text
        )

    def end_token(self) -> int | None:
        token = int(self._tokenizer.get_eos_token_id())
        return None if token < 0 else token

    def _encode(self, text: str, *, add_special_tokens: bool, param: str) -> list[int]:
        try:
            encoded = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        except (RuntimeError, TypeError, ValueError) as error:
            raise InvalidRequest(
                "The text is not valid Unicode.", "Send UTF-8 without lone surrogates.", param
            ) from error
        ids: list[int] = encoded.input_ids.data.ravel().tolist()
        if self._most_tokens is not None and len(ids) >= self._most_tokens:
            raise ContextTooLong(
                f"The prompt has {self._most_tokens} tokens or more; this model's tokenizer reads "
                f"fewer than {self._most_tokens}.",
                "Shorten the prompt.",
                param,
            )
        return ids


def _most_tokens(tokenizer: Any) -> int | None:
    """Where the tokenizer silently cuts a text (seen: 8192, whatever `truncation` says); None when
    it does not within any context length."""
    # No tokenizer joins words, so this is one token a word at least.
    encoded = tokenizer.encode("a " * _PROBE_WORDS, add_special_tokens=False)
    count = int(encoded.input_ids.data.size)
    return count if count < _PROBE_WORDS else None


def _template_refusal(error: Exception, messages: Sequence[ChatMessage]) -> InvalidRequest:
    """What the template said, unless it quotes a message: errors never hold text of a prompt."""
    found = _TEMPLATE_REASON.search(str(error))
    said = found[1] if found else ""
    if any(message.content and message.content in said for message in messages):
        said = ""
    return InvalidRequest(
        "The model's chat template refuses these messages" + (f": {said}." if said else "."),
        "Change their roles or order.",
        param="messages",
    )
