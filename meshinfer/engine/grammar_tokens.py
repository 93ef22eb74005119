"""A model's tokens as llguidance sees them: which are text, and how forced text is written in them.

Called by the grammar compiler, and by llguidance while it computes a mask.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from meshinfer.errors import MeshInferError

_NO_TEXT = 0xFF
"""In no UTF-8 text; llguidance marks its special tokens with it (toktrie)."""


def text_tokens(
    vocabulary: Mapping[int, bytes], size: int, excluded: Collection[int]
) -> tuple[bytes, ...]:
    """The bytes of tokens 0 .. size; empty for `excluded` ones and for padding, which no grammar
    then allows."""
    known = (vocabulary.get(token, b"") for token in range(size))
    return tuple(
        b"" if token in excluded or data[:1] == bytes([_NO_TEXT]) else data
        for token, data in enumerate(known)
    )


class ForcedText:
    """What llguidance's TokenizerWrapper asks for. Its end token is one behind the model's own: it
    needs exactly one, and a model may have none or several."""

    def __init__(self, tokens: Sequence[bytes], encode: Callable[[str], list[int]]) -> None:
        self.tokens = (*tokens, bytes([_NO_TEXT]) + b"<none>")
        self.eos_token_id = len(tokens)
        self.bos_token_id = None
        self.special_token_ids = (self.eos_token_id,)
        self._encode = encode
        self._ids: dict[bytes, int] = {}
        self._longest = 0

    def __call__(self, text: str) -> list[int]:
        """Ids whose bytes are those of `text`: the tokenizer's own, unless it adds a beginning or a
        space, or finds a special token in the text."""
        data = text.encode()
        try:
            ids = self._encode(text)
        except MeshInferError:
            ids = []
        while ids and not self._bytes(ids[0]):  # a beginning of sequence
            ids = ids[1:]
        if all(self._bytes(one) for one in ids) and b"".join(map(self._bytes, ids)) == data:
            return ids
        return self._longest_first(data)

    def _bytes(self, token: int) -> bytes:
        return self.tokens[token] if 0 <= token < self.eos_token_id else b""

    def _longest_first(self, data: bytes) -> list[int]:
        """Up to the first byte that no token begins with."""
        if not self._ids:
            # Backwards, so that the lower id of two equal tokens stays.
            known = reversed(list(enumerate(self.tokens[: self.eos_token_id])))
            self._ids = {text: token for token, text in known if text}
            self._longest = max(map(len, self._ids), default=0)
        ids: list[int] = []
        place = 0
        while place < len(data):
            ends = range(min(len(data), place + self._longest), place, -1)
            end = next((end for end in ends if data[place:end] in self._ids), None)
            if end is None:
                break
            ids.append(self._ids[data[place:end]])
            place = end
        return ids
