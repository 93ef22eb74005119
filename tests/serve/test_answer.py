"""Drawn tokens become text and log-probabilities; nothing of a stop string is in either (C09)."""

from __future__ import annotations

import pytest

from meshinfer.core.request import GREEDY, FinishReason, Sampling
from meshinfer.core.step import Sampled
from meshinfer.engine.detokenizer import Detokenizer
from meshinfer.serve.answer import Answer
from meshinfer.serve.sequence import Sequence
from meshinfer.serve.stop_filter import StopFilter

WORDS = {1: b"DEF", 2: b"G", 3: b"HI", 4: b"JK", 5: "\u00e9".encode()[:1], 6: "\u00e9".encode()[1:]}
END = 9


def answer(stops: tuple[str, ...], logprobs: int | None = 1, limit: int = 50) -> Answer:
    sampling = Sampling(temperature=0.0, logprobs=logprobs)
    sequence = Sequence([0], 1, sampling, limit, {END})
    return Answer(0, sequence, Detokenizer(WORDS, {END}).stream(), StopFilter(stops), WORDS, 0.0)


def feed(one: Answer, *tokens: int) -> list[tuple[str, list[bytes]]]:
    """Text and told tokens of every delta, until the answer ends."""
    seen = []
    for token in tokens:
        if one.sequence.finish is not None:
            break
        one.sequence.append(token)
        delta = one.take((Sampled(token, -1.0, ((token, -1.0),)),))
        seen.append((delta.text, [entry.token for entry in delta.logprobs]))
    return seen


def test_a_stop_string_over_several_tokens() -> None:
    one = answer(("FGH",))
    assert feed(one, 4, 1, 2, 3, 4) == [
        ("JK", [b"JK"]),
        ("DE", []),
        ("", []),
        ("", []),
    ]
    assert one.sequence.finish is FinishReason.STOP


def test_what_turned_out_not_to_be_a_stop_string_is_released() -> None:
    one = answer(("DEFX",))
    assert feed(one, 1, 2, END) == [("", []), ("DEFG", [b"DEF", b"G"]), ("", [])]
    assert one.sequence.finish is FinishReason.STOP


def test_the_limit_releases_what_was_held() -> None:
    one = answer(("DEFX",), limit=1)
    assert feed(one, 1) == [("DEF", [b"DEF"])]
    assert one.sequence.finish is FinishReason.LENGTH


def test_a_character_over_two_tokens_is_told_when_it_is_shown() -> None:
    assert feed(answer(()), 5, 6) == [("", []), ("\u00e9", [WORDS[5], WORDS[6]])]


@pytest.mark.parametrize("token", [1, END])
def test_unasked_log_probabilities_are_not_told(token: int) -> None:
    one = answer((), logprobs=None)
    assert feed(one, token)[0][1] == []
    assert GREEDY.logprobs is None


@pytest.mark.parametrize(
    "tokens", [(4, 1, 2, 3, 4), (4, 1, 2, 3, END), (1, 2, 4, 3, 4), (5, 6, END)]
)
@pytest.mark.parametrize("together", [2, 3, 5])
def test_several_tokens_at_once_are_told_as_one_by_one(
    tokens: tuple[int, ...], together: int
) -> None:
    """A step with right guesses brings several; what follows a stop string is dropped."""
    single, several = answer(("FGH", "GJ"), limit=4), answer(("FGH", "GJ"), limit=4)
    plain = feed(single, *tokens)
    told: list[tuple[str, list[bytes]]] = []
    for first in range(0, len(tokens), together):
        taken = []
        for token in tokens[first : first + together]:
            if several.sequence.finish is None:
                several.sequence.append(token)
                taken.append(Sampled(token, -1.0, ((token, -1.0),)))
        if taken:
            delta = several.take(tuple(taken))
            told.append((delta.text, [entry.token for entry in delta.logprobs]))
    assert "".join(text for text, _ in told) == "".join(text for text, _ in plain)
    assert sum((names for _, names in told), []) == sum((names for _, names in plain), [])
    assert several.sequence.tokens == single.sequence.tokens
    assert several.sequence.finish is single.sequence.finish
