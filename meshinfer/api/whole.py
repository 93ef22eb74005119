"""The pieces of an answer put together, for clients that want it in one."""

from __future__ import annotations

from dataclasses import dataclass, field

from meshinfer.api.answer import ChoiceEnd, Ending, Text
from meshinfer.api.feed import AnswerFeed
from meshinfer.core.request import FinishReason, TokenLogprob


@dataclass(frozen=True, slots=True)
class WholeChoice:
    """One complete choice."""

    text: str
    logprobs: tuple[TokenLogprob, ...]
    reason: FinishReason


@dataclass(slots=True)
class _Growing:
    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    reason: FinishReason = FinishReason.STOP

    def whole(self) -> WholeChoice:
        return WholeChoice("".join(self.texts), tuple(self.logprobs), self.reason)


async def collect(feed: AnswerFeed, choices: int) -> tuple[list[WholeChoice], Ending]:
    """All choices in their order. Raises what the feed raises."""
    growing = [_Growing() for _ in range(choices)]
    while True:
        piece = await feed.next(None)
        match piece:
            case Text():
                growing[piece.choice].texts.append(piece.text)
                growing[piece.choice].logprobs.extend(piece.logprobs)
            case ChoiceEnd():
                growing[piece.choice].reason = piece.reason
            case Ending():
                return [one.whole() for one in growing], piece
