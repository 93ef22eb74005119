"""One row of a step with everything that its return needs. Made by the step choice, kept while the
step is under way."""

from __future__ import annotations

from dataclasses import dataclass

from meshinfer.core.step import Row
from meshinfer.serve.candidates import Candidate
from meshinfer.serve.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Pick:
    row: Row
    sequence: Sequence
    tokens: tuple[int, ...]  # of the row
    turn: int  # of the sequence when the row went out: another one now, and the row is stale
    guesses: tuple[Candidate, ...] = ()  # the row's drafts: its tokens from the second on, or all
    is_ahead: bool = False  # all its tokens are drafts, behind a row that is under way as well

    @property
    def is_current(self) -> bool:
        """Whether the row that comes back still speaks of its sequence as it is now."""
        one = self.sequence
        return one.is_running and self.row.sequence == one.key and self.turn == one.turn
