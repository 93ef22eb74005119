"""A stage with what it knows of its sequences: their tokens, and when they were last heard of.

Lives as long as the stage is loaded, through several plans: a new leader asks by a census what all
stages still hold. Everything here runs on the engine's thread, in the order of the frames.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from numpy.typing import NDArray

from meshinfer.core.step import Sampled, Step
from meshinfer.engine.histories import Histories
from meshinfer.engine.sampling import draw
from meshinfer.engine.stage import Stage, StageShape
from meshinfer.wire.cache_census import Held, common, limited

LEASE_S = 900.0
"""The cache of a sequence that no frame named for so long is given back: its end was lost. Leaders
name all that live every minute."""


class StageMemory:
    """`clock` is monotonic seconds."""

    def __init__(
        self,
        stage: Stage,
        context_length: int,
        clock: Callable[[], float],
        lease_s: float = LEASE_S,
    ) -> None:
        self._stage = stage
        self._histories = Histories(context_length)
        self._clock = clock
        self._lease_s = lease_s
        self._heard: dict[int, float] = {}  # the longest silent first

    @property
    def shape(self) -> StageShape:
        return self._stage.shape

    def forward(
        self, step: Step, hidden: NDArray[Any] | None
    ) -> NDArray[Any] | tuple[Sampled, ...]:
        """Compute, and at the last stage draw. Raises CacheLost, StageFailed."""
        self._expire()
        self._forget(step.released)
        result = self._stage.forward(step, hidden)
        self._histories.apply(step)
        now = self._clock()
        for row in step.rows:
            self._heard.pop(row.sequence, None)
            self._heard[row.sequence] = now
        if not self._stage.shape.last:
            return result
        return draw(result, self._histories.draw_rows(step)) if step.logit_count else ()

    def census(self, held: tuple[Held, ...] | None) -> tuple[Held, ...]:
        """What of `held` (None: of everything) this stage holds as well."""
        own = {one: self._histories.tokens(one) for one in self._heard}
        own = {one: tokens[: self._stage.cached(one)] for one, tokens in own.items()}
        if held is None:
            return limited(tuple(Held(one, own[one]) for one in reversed(own) if len(own[one])))
        return common(held, own)

    def keep(self, lengths: Mapping[int, int]) -> None:
        """Forget all sequences but these, and what of them is behind so many tokens."""
        self._forget([one for one in self._heard if one not in lengths])
        self._stage.keep(lengths)
        now = self._clock()
        for one in self._heard:
            self._histories.cut(one, lengths[one])
            self._heard[one] = now

    def _expire(self) -> None:
        oldest = self._clock() - self._lease_s
        silent = []
        for sequence, heard in self._heard.items():
            if heard >= oldest:
                break
            silent.append(sequence)
        if silent:
            living = [one for one in self._heard if one not in set(silent)]
            self._stage.keep({one: self._stage.cached(one) for one in living})
            self._forget(silent)

    def _forget(self, sequences: list[int] | tuple[int, ...]) -> None:
        self._histories.drop(sequences)
        for one in sequences:
            self._heard.pop(one, None)
