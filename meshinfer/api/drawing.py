"""Fields that say how tokens are drawn -> Sampling. Names and ranges are OpenAI's and vLLM's."""

from __future__ import annotations

from collections.abc import Callable

from meshinfer.api.fields import Fields, is_number, wrong
from meshinfer.core.request import MOST_ALTERNATIVES, Sampling

Chance = Callable[[int], int]
"""Random integer of that many bits: `secrets.randbits`, or a fixed one in tests."""

_MOST_CHOICES = 16  # each holds a place and cache of its own
_MOST_BIASES = 1024
_BIAS = 100.0
_TOKENS_END = 2**31  # beyond every vocabulary; which ids a model has is known where it runs
_TEXT_ALTERNATIVES = 5  # OpenAI's limit of /v1/completions


def parse_sampling(fields: Fields, chance: Chance, logprobs: int | None) -> Sampling:
    """Raises InvalidRequest."""
    top_k = fields.integer("top_k", -1, _TOKENS_END - 1)
    seed = fields.integer("seed", -(2**63), 2**64 - 1)
    return Sampling(
        temperature=fields.number("temperature", 1.0, 0.0, 2.0),
        top_p=fields.positive("top_p", 1.0, 1.0),
        top_k=max(top_k or 0, 0),  # vLLM's clients say -1 for "no limit"
        seed=chance(64) if seed is None else seed % 2**64,
        min_p=fields.number("min_p", 0.0, 0.0, 1.0),
        repetition_penalty=fields.positive("repetition_penalty", 1.0, 10.0),
        presence_penalty=fields.number("presence_penalty", 0.0, -2.0, 2.0),
        frequency_penalty=fields.number("frequency_penalty", 0.0, -2.0, 2.0),
        logprobs=logprobs,
        bias=_bias(fields.get("logit_bias")),
    )


def parse_choices(fields: Fields) -> int:
    """How many answers. Raises InvalidRequest when more are to be made than shown."""
    choices = fields.integer("n", 1, _MOST_CHOICES) or 1
    best_of = fields.integer("best_of", 1)
    if best_of not in (None, choices):
        raise wrong("best_of", "equal to 'n': answers are not compared")
    return choices


def chat_logprobs(fields: Fields) -> int | None:
    """How many alternatives to each token, None for no logprobs at all. Raises InvalidRequest."""
    wanted = fields.flag("logprobs")
    alternatives = fields.integer("top_logprobs", 0, MOST_ALTERNATIVES) or 0
    if alternatives and not wanted:
        raise wrong("top_logprobs", "left out, or 'logprobs' set to true")
    return alternatives if wanted else None


def text_logprobs(fields: Fields) -> int | None:
    """The same of /v1/completions, where one number says both. Raises InvalidRequest."""
    if fields.integer("top_logprobs", 0):
        raise wrong("top_logprobs", "left out: here 'logprobs' is the number of alternatives")
    if fields.get("logprobs") is False:
        return None  # a chat client's neutral value
    return fields.integer("logprobs", 0, _TEXT_ALTERNATIVES)


def _bias(value: object) -> tuple[tuple[int, float], ...]:
    if value is None:
        return ()
    if not isinstance(value, dict):
        raise wrong("logit_bias", "an object of token ids and numbers")
    if len(value) > _MOST_BIASES:
        raise wrong("logit_bias", f"an object of at most {_MOST_BIASES} token ids")
    # a dict, as "1" and "01" name the same token
    return tuple({_token(key): _strength(one) for key, one in value.items()}.items())


def _token(key: str) -> int:
    # the length first: int() of a long string takes time, and refuses in its own words
    if not (len(key) <= 10 and key.isascii() and key.isdigit()) or int(key) >= _TOKENS_END:
        raise wrong("logit_bias", "an object whose names are token ids")
    return int(key)


def _strength(value: object) -> float:
    if is_number(value) and -_BIAS <= value <= _BIAS:
        return float(value)
    raise wrong("logit_bias", f"an object of numbers from -{_BIAS:g} to {_BIAS:g}")
