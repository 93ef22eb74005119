"""Drafts without a model: what followed the same words before.

The end of a sequence is looked for in its own text (prompt and answer) and in recent answers to the
same user; what came after the longest match is the guess. Code, quotations, tables and summaries
repeat much of what is already there. Another user's answers are never looked at: what is drafted
shows in how fast an answer comes. Pure.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from meshinfer.serve.sequence import Sequence

MOST_MATCHED = 24
"""Tokens of context that are compared; a longer match tells no more."""

_PLACES = 6
"""Latest places of a pair of tokens that are looked at."""

_RECENT_TOKENS = 4096
"""Of answers that are remembered a user."""

_USERS = 64


@dataclass(frozen=True, slots=True)
class Lookup:
    """`tokens` followed after `matched` equal ones."""

    tokens: tuple[int, ...]
    matched: int


class TokenIndex:
    """Where every pair of tokens ends in a text that grows."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._ends: dict[tuple[int, int], list[int]] = {}

    def extend(self, tokens: SequenceOf[int]) -> None:
        for token in tokens:
            self.tokens.append(token)
            end = len(self.tokens)
            if end > 1:
                places = self._ends.setdefault((self.tokens[-2], token), [])
                places.append(end)
                if len(places) > _PLACES:
                    del places[0]

    def cut(self, length: int) -> None:
        """Forget the text from `length` on. Rare: everything is indexed anew."""
        kept = self.tokens[:length]
        self.tokens, self._ends = [], {}
        self.extend(kept)

    def best(self, context: SequenceOf[int]) -> tuple[int, int]:
        """(end, matched) of the longest match of the end of `context`, the latest among equals;
        matched 0: there is none. A match is followed by something."""
        best = (0, 0)
        if len(context) < 2:
            return best
        for end in reversed(self._ends.get((context[-2], context[-1]), ())):
            if end == len(self.tokens):
                continue
            matched = self._matched(context, end)
            if matched > best[1]:
                best = (end, matched)
        return best

    def _matched(self, context: SequenceOf[int], end: int) -> int:
        most = min(len(context), end, MOST_MATCHED)
        matched = 2
        while matched < most and self.tokens[end - 1 - matched] == context[-1 - matched]:
            matched += 1
        return matched


class LookupDrafts:
    """One index for every sequence that asked, and one for every user's recent answers."""

    def __init__(self) -> None:
        self._own: dict[int, TokenIndex] = {}  # by id() of the sequence
        self._recent: OrderedDict[str, tuple[deque[list[int]], TokenIndex]] = OrderedDict()

    def propose(self, sequence: Sequence, tail: SequenceOf[int], most: int) -> Lookup | None:
        """What may follow the sequence's tokens and `tail`, at most `most` tokens."""
        own = self._own.setdefault(id(sequence), TokenIndex())
        known = len(own.tokens)
        own.extend(sequence.tokens[known:])
        if tail:
            context = [*sequence.tokens[-MOST_MATCHED:], *tail][-MOST_MATCHED:]
        else:
            context = sequence.tokens[-MOST_MATCHED:]
        end, matched = own.best(context)
        found: Lookup | None = None
        if matched:
            found = Lookup(_following(own.tokens, tail, end, most), matched)
        recent = self._recent.get(sequence.user)
        if recent is not None:
            end, longer = recent[1].best(context)
            if longer > matched:
                found = Lookup(_until_gap(recent[1].tokens[end : end + most]), longer)
        return found if found is not None and found.tokens else None

    def remember(self, sequence: Sequence) -> None:
        """An answer is complete: its user's next questions may be answered alike."""
        self._own.pop(id(sequence), None)
        answer = sequence.tokens[sequence.prompt_length :][-_RECENT_TOKENS:]
        if len(answer) < 3 or not sequence.user:
            return
        kept, index = self._recent.pop(sequence.user, (deque(), TokenIndex()))
        kept.append(answer)
        if len(index.tokens) > 2 * _RECENT_TOKENS:
            index = _newest(kept)
        else:
            index.extend([_GAP, *answer])
        self._recent[sequence.user] = (kept, index)
        if len(self._recent) > _USERS:
            self._recent.popitem(last=False)

    def forget(self, sequence: Sequence) -> None:
        """It was cancelled or failed."""
        self._own.pop(id(sequence), None)


_GAP = -1
"""Between two answers: no token."""


def _newest(answers: deque[list[int]]) -> TokenIndex:
    """An index of the newest answers that are kept; the others leave."""
    while len(answers) > 1 and sum(map(len, answers)) > _RECENT_TOKENS:
        answers.popleft()
    index = TokenIndex()
    for answer in answers:
        index.extend([_GAP, *answer])
    return index


def _following(text: list[int], tail: SequenceOf[int], start: int, most: int) -> tuple[int, ...]:
    """`most` tokens of `text` and `tail` from `start` on; what repeats itself goes on repeating."""
    found = [*text[start : start + most], *tail][:most]
    for place in range(most - len(found)):
        found.append(found[place])
    return tuple(found)


def _until_gap(tokens: list[int]) -> tuple[int, ...]:
    return tuple(tokens[: tokens.index(_GAP)] if _GAP in tokens else tokens)
