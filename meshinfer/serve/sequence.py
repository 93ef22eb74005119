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

    def copy(self) -> Constraint: ...

    @property
    def is_complete(self) -> bool:
        """Nothing may follow."""
        ...


@dataclass(slots=True)
class Sequence:
    """Tokens of one answer: the prompt, then what was drawn.

    `scheduled` tokens are in the cache of every stage or on their way there; those beyond `tokens`
    are the `guess`. `key` names the sequence on the ring while it runs; one that gives up its cache
    starts again under another, so that a late frame never meets the new one. `turn` changes when
    rows under way have become stale, because a guess was wrong or a step is to be repeated.
    """

    tokens: list[int]
    prompt_length: int
    sampling: Sampling
    limit: int  # tokens it may draw
    stop_tokens: Collection[int] = ()
    priority: int = 0  # lower goes first
    user: str = ""  # requests of one user share its turn
    constraint: Constraint | None = None
    drafts: int | None = None  # that go along in every step; None: as measurement advises
    state: SequenceState = SequenceState.WAITING
    key: int = 0  # 0: it does not run
    scheduled: int = 0
    confirmed: int = 0  # of them, those whose steps came back
    in_flight: int = 0  # steps that carry a row of it
    cached: int = 0  # tokens of the prompt that were found in the cache when it first started
    ready_since: int = 0  # number of the commit that made its next row possible
    finish: FinishReason | None = field(default=None)
    guess: list[int] = field(default_factory=list)  # drafts under way, one behind the other
    has_tree: bool = False  # a row with a token tree is under way
    kept: tuple[int, ...] = ()  # slots of an accepted branch, to be moved by the next row
    turn: int = 0

    @property
    def is_running(self) -> bool:
        return self.state is SequenceState.RUNNING

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

    @property
    def drafts_allowed(self) -> int:
        """Most drafts that may go behind the last known token: more would be beyond its limit."""
        within = max(0, self.limit - self.drawn - 1)
        return within if self.drafts is None else min(within, self.drafts)

    @property
    def held(self) -> int:
        """Slots that stages hold for it once all steps are done."""
        return max(self.scheduled, self.kept[-1] + 1) if self.kept else self.scheduled

    def forget_guess(self, length: int) -> None:
        """Rows under way are stale: what is behind `length` tokens is not in the cache."""
        self.turn += 1
        self.guess = []
        self.scheduled = length
        self.confirmed = min(self.confirmed, length)

    def drop(self, count: int) -> None:
        """The last `count` drawn tokens do not count: they follow what ended the answer."""
        if count:
            del self.tokens[-count:]

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
