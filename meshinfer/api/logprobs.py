"""Log-probabilities of drawn tokens in the two shapes that OpenAI gives them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from meshinfer.api.form import Document
from meshinfer.core.request import TokenLogprob

_LEAST = -9999.0  # OpenAI's number for "practically never"; JSON has no infinity


def chat_shape(drawn: Iterable[TokenLogprob]) -> Document:
    """`logprobs` of /v1/chat/completions."""
    content = [
        _entry(one.token, one.logprob)
        | {"top_logprobs": [_entry(token, logprob) for token, logprob in one.alternatives]}
        for one in drawn
    ]
    return {"content": content, "refusal": None}


def text_shape(drawn: Sequence[TokenLogprob], characters: int) -> Document:
    """`logprobs` of /v1/completions. `characters` began in front of the first token.

    As in vLLM the offsets count in the answer, and a token's alternatives have itself among them.
    """
    offsets = []
    for one in drawn:
        # a token that goes on with a character stands where that one began
        offsets.append(characters - (characters > 0 and _goes_on(one.token)))
        characters += begun(one.token)
    return {
        "tokens": [_text(one.token) for one in drawn],
        "token_logprobs": [_finite(one.logprob) for one in drawn],
        "top_logprobs": [_alternatives(one) for one in drawn],
        "text_offset": offsets,
    }


def begun(token: bytes) -> int:
    """How many characters begin in `token`: bytes of UTF-8 that do not go on with one."""
    return sum(byte & 0xC0 != 0x80 for byte in token)


def _goes_on(token: bytes) -> bool:
    return bool(token) and token[0] & 0xC0 == 0x80


def _entry(token: bytes, logprob: float) -> Document:
    return {"token": _text(token), "logprob": _finite(logprob), "bytes": list(token)}


def _alternatives(drawn: TokenLogprob) -> dict[str, float]:
    """Parts of characters look alike in text: the most likely one is shown."""
    found = {_text(token): _finite(logprob) for token, logprob in reversed(drawn.alternatives)}
    return found | {_text(drawn.token): _finite(drawn.logprob)}


def _text(token: bytes) -> str:
    return token.decode("utf-8", "replace")


def _finite(logprob: float) -> float:
    """Also for NaN, which is above nothing."""
    return logprob if logprob > _LEAST else _LEAST
