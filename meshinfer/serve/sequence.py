"""One request in flight, as the scheduler sees it. Pure state; only the scheduler changes it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Protocol

from meshinfer.core.request import FinishReason, Sampling


class SequenceState(Enum):
    WAITING = auto()  # admitted, holds no cache
    RUNNING = auto()  # holds cache on every stage
    FINISHED = auto()  # answered, cancelled or failed


class Constraint(Protocol):
    """A grammar that the answer follows (engine.grammar)."""

    def mask(self) -> bytes:
        """Tokens that may come next, a bit each. Raises InvalidRequest where none can."""
        ...

    def accept(self, token: int) -> None: ...

    @property
    def is_complete(self) -> bool:
        """Nothing may follow."""
        ...


@dataclass(slots=True)
class Sequence:
    """Tokens of one answer: the prompt, then what was drawn.

    `scheduled` tokens are in the cache of every stage or on their way there. `key` names the
    sequence on the ring while it runs; one that gives up its cache starts again under another, so
    that a late frame never meets the new one.
    """

    tokens: list[int]
    prompt_length: int
    sampling: Sampling
    limit: int  # tokens it may draw
    stop_tokens: Collection[int] = ()
    priority: int = 0  # lower goes first
    user: str = ""  # requests of one user share its turn
    constraint: Constraint | None = None
    state: SequenceState = SequenceState.WAITING
    key: int = 0  # 0: it does not run
    scheduled: int = 0
    confirmed: int = 0  # of them, those whose steps came back
    in_flight: int = 0  # steps that carry a row of it
    cached: int = 0  # tokens of the prompt that were found in the cache when it first started
    ready_since: int = 0  # number of the commit that made its next row possible
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
        """Its next row has one token and asks for the next, or the last one is under way."""
        return self.pending <= 1 and self.scheduled > 0

    def append(self, token: int) -> None:
        """Take a drawn token; sets `finish` at a stop token, at the end of the grammar or at the
        limit. Raises InvalidRequest when the grammar gives up."""
        self.tokens.append(token)
        if token in self.stop_tokens:
            self.finish = FinishReason.STOP
            return
        if self.constraint is not None:
            self.constraint.accept(token)
            if self.constraint.is_complete:
                self.finish = FinishReason.STOP
                return
        if self.drawn >= self.limit:
            self.finish = FinishReason.LENGTH
