"""One request in flight, as the scheduler sees it. Pure state; only the scheduler changes it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum, auto

from meshinfer.core.request import FinishReason, Sampling


class SequenceState(Enum):
    WAITING = auto()  # admitted, holds no cache
    RUNNING = auto()  # holds cache on every stage
    FINISHED = auto()  # answered, cancelled or failed; its cache is released with the next step


@dataclass(slots=True)
class Sequence:
    """Tokens of one request: the prompt, then what was drawn.

    `scheduled` tokens are in the cache of every stage or on their way there. `key` names the
    sequence on the ring; it changes when the cache is given up and computed again, so that a late
    frame never meets the new one.
    """

    key: int
    tokens: list[int]
    prompt_length: int
    sampling: Sampling
    limit: int  # tokens it may draw
    stop_tokens: Collection[int] = ()
    state: SequenceState = SequenceState.WAITING
    scheduled: int = 0
    in_flight: int = 0  # steps that carry a row of it
    finish: FinishReason | None = field(default=None)

    @property
    def drawn(self) -> int:
        return len(self.tokens) - self.prompt_length

    @property
    def pending(self) -> int:
        """Known tokens that are not in the cache yet."""
        return len(self.tokens) - self.scheduled

    @property
    def decodes(self) -> bool:
        """Its next row has one token and asks for the next."""
        return self.pending == 1 and self.scheduled > 0

    def is_ready(self) -> bool:
        """A row can be made now. Prompt chunks follow each other without waiting for an answer."""
        return self.state is not SequenceState.FINISHED and self.pending > 0

    def append(self, token: int) -> None:
        """Take a drawn token; sets `finish` at a stop token or at the limit."""
        self.tokens.append(token)
        if token in self.stop_tokens:
            self.finish = FinishReason.STOP
        elif self.drawn >= self.limit:
            self.finish = FinishReason.LENGTH
