"""Whether two models say the same words: a digest of what every token id means.

A tokenizer and a model's end tokens go in, a digest comes out. A draft model may guess for a large
one only when both have the same (case C21). Called from a worker thread: it decodes every token
alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping

from meshinfer.core.ids import Digest
from meshinfer.engine.tokenizer import Tokenizer

_SPECIAL = 1
_ENDS = 2


def vocabulary_digest(tokenizer: Tokenizer, end_tokens: Collection[int]) -> Digest:
    """SHA-256 of all that `digest_of` looks at. `end_tokens` are the model's; the tokenizer's own
    is added."""
    own = tokenizer.end_token()
    ends = frozenset(end_tokens) | (frozenset() if own is None else {own})
    return digest_of(tokenizer.vocabulary(), tokenizer.special_tokens(), ends)


def digest_of(
    vocabulary: Mapping[int, bytes], special: Collection[int], ends: Collection[int]
) -> Digest:
    """Every token in the order of the ids: id, kind, length and bytes.

    Rows of a head that mean nothing do not count, so a head may be padded: ids that are not in the
    vocabulary, and ordinary ones without bytes.
    """
    result = hashlib.sha256()
    special, ends = frozenset(special), frozenset(ends)
    for token in sorted(vocabulary):
        data = vocabulary[token]
        kind = _SPECIAL * (token in special) + _ENDS * (token in ends)
        if not data and not kind:
            continue
        result.update(token.to_bytes(4, "little") + bytes([kind]))
        result.update(len(data).to_bytes(4, "little") + data)
    return Digest(result.hexdigest())
