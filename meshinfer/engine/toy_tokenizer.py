"""The tokenizer of toy models: a token is a byte. Tests and demos without a real model."""

from __future__ import annotations

from collections.abc import Sequence

from meshinfer.core.request import ChatMessage
from meshinfer.errors import InvalidRequest

BEGIN_TOKEN = 256
END_TOKEN = 257


class ByteTokenizer:
    """Ids 0..255 are bytes of UTF-8; then begin and end of a turn. Implements Tokenizer."""

    def encode_chat(self, messages: Sequence[ChatMessage]) -> list[int]:
        """Begin, then `role: content`, end for each message; then what opens the answer."""
        text = [BEGIN_TOKEN]
        for message in messages:
            text += [*_encode(f"{message.role}: {message.content}\n", "messages"), END_TOKEN]
        return [*text, *b"assistant: "]

    def encode_text(self, prompt: str) -> list[int]:
        return [BEGIN_TOKEN, *_encode(prompt, "prompt")]

    def vocabulary(self) -> dict[int, bytes]:
        pieces = {byte: bytes([byte]) for byte in range(256)}
        return {**pieces, BEGIN_TOKEN: b"<begin>", END_TOKEN: b"<end>"}

    def special_tokens(self) -> frozenset[int]:
        return frozenset((BEGIN_TOKEN, END_TOKEN))

    def end_token(self) -> int | None:
        return END_TOKEN


def _encode(text: str, param: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            "The text is not valid Unicode.", "Send UTF-8 without lone surrogates.", param
        ) from error
