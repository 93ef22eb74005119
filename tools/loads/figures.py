"""What a run of users shows: times of first tokens and between tokens, tokens a second, faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tools.loads.exchange import Answer
from tools.loads.spread import Spread, spread
from tools.loads.users import BUSY, Asked


@dataclass(frozen=True, slots=True)
class Figures:
    requests: int
    answered: int
    seconds: float
    tokens: int
    tokens_per_s: float
    prompt_tokens: int
    first_token_s: Spread | None
    between_tokens_s: Spread | None
    whole_answer_s: Spread | None
    faults: dict[str, int]  # by kind; of final answers
    busy: int  # answers 429, waited for or not
    dropped: int


def figures_of(asked: Sequence[Asked], seconds: float, dropped: int = 0) -> Figures:
    """Of a whole run that took `seconds`."""
    answers = [one.answer for one in asked]
    good = [one for one in answers if one.fault is None]
    tokens = sum(one.tokens for one in answers)
    faults = Counter(one.fault for one in answers if one.fault is not None)
    return Figures(
        requests=len(answers),
        answered=len(good),
        seconds=seconds,
        tokens=tokens,
        tokens_per_s=tokens / seconds if seconds > 0 else 0.0,
        prompt_tokens=sum(one.prompt_tokens or 0 for one in answers),
        first_token_s=spread(first_tokens(answers)),
        between_tokens_s=spread(gaps(answers)),
        whole_answer_s=spread(one.ended - one.asked for one in good),
        faults=dict(faults),
        busy=sum(one.refusals for one in asked) + faults[BUSY],
        dropped=dropped,
    )


def first_tokens(answers: Sequence[Answer]) -> list[float]:
    """Seconds from the question to the first piece of text, of those that have one."""
    return [one.marks[0] - one.asked for one in answers if one.marks]


def gaps(
    answers: Sequence[Answer], begin: float = float("-inf"), end: float = float("inf")
) -> list[float]:
    """Seconds between neighbouring pieces of text that came in this time."""
    return [
        later - earlier
        for one in answers
        for earlier, later in pairwise(one.marks)
        if begin <= earlier and later <= end
    ]


def together_per_s(answers: Sequence[Answer]) -> float:
    """Tokens a second while all decode: from the moment when the last one has its first token to
    the last token of the first one that ends.

    Raises ValueError: they never decoded all at once, or one was not answered.
    """
    faults = Counter(one.fault for one in answers if one.fault is not None)
    if faults:
        raise ValueError(f"not all were answered: {dict(faults)}")
    if not answers or any(len(one.marks) < 2 for one in answers):
        raise ValueError("an answer had fewer than two tokens")
    begin = max(one.marks[0] for one in answers)
    end = min(one.marks[-1] for one in answers)
    if end <= begin:
        raise ValueError("the answers did not overlap: ask for more tokens")
    tokens = 0.0
    for one in answers:  # a piece of one may hold more tokens than a piece of another
        pieces = sum(1 for moment in one.marks if begin < moment <= end)
        tokens += pieces * one.tokens / len(one.marks)
    return tokens / (end - begin)
