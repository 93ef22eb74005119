"""Tokens to text, as a stream of whole characters. Pure; called by the inbox for each answer.

A token's bytes may end inside a character (emoji and CJK letters spread over two or three tokens);
what is incomplete waits for the next token, and nothing else waits.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection, Mapping

_UTF8 = codecs.getincrementaldecoder("utf-8")


class TextStream:
    """The text of one answer."""

    __slots__ = ("_decoder", "_special", "_vocabulary")

    def __init__(self, vocabulary: Mapping[int, bytes], special: Collection[int]) -> None:
        self._vocabulary = vocabulary
        self._special = special
        # Emits U+FFFD for the longest prefix that can no longer become a character, as
        # `bytes.decode(errors="replace")` does, and withholds only what still can.
        self._decoder = _UTF8("replace")

    def feed(self, token: int) -> str:
        """The characters that `token` completes. Special and unknown tokens have no text."""
        if token in self._special:
            return ""
        return self._decoder.decode(self._vocabulary.get(token, b""))

    def finish(self) -> str:
        """What is left when no token follows: U+FFFD for a character that was never completed."""
        return self._decoder.decode(b"", final=True)


class Detokenizer:
    """`vocabulary` gives the bytes of each token; `special` tokens are never shown."""

    def __init__(self, vocabulary: Mapping[int, bytes], special: Collection[int]) -> None:
        self._vocabulary = vocabulary
        self._special = frozenset(special)

    def stream(self) -> TextStream:
        """For one answer."""
        return TextStream(self._vocabulary, self._special)
