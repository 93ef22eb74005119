"""What a stage knows of the tokens of its sequences: for penalties, for the last stage's drawing,
and to tell a new leader what its cache holds.

Steps go in, in order; out come token ids and how to draw. Called on the engine's thread, once a
step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from meshinfer.core.step import Row, Step
from meshinfer.engine.penalties import needs_tokens
from meshinfer.engine.sampling import DrawRow
from meshinfer.engine.step_arrays import token_count
from meshinfer.engine.trees import depth, path
from meshinfer.errors import StageFailed

_BUG = "This is a bug: report it."
_LEAST_ROOM = 64  # tokens


class Histories:
    """The tokens of every sequence, and what its Opening said."""

    def __init__(self, context_length: int) -> None:
        self._context_length = context_length
        self._known: dict[int, _History] = {}

    def apply(self, step: Step) -> None:
        """Release, note openings, then write the rows' tokens.

        Raises StageFailed when a row does not fit what is known, or the step contradicts itself;
        then nothing has changed but what it releases and opens.
        """
        self.drop(step.released)
        for opening in step.openings:
            history = self._known.setdefault(opening.sequence, _History())
            history.prompt_length = opening.prompt_length
            history.bias = opening.bias
        tokens = np.array(step.tokens, np.int32)
        self._check(step)
        forked = self._forked(step.rows)
        first = 0
        for row, shared in zip(step.rows, forked, strict=True):
            history = self._known.setdefault(row.sequence, _History())
            if shared is not None:
                history.write(0, shared, self._context_length)
            history.gather(row.kept, row.position - len(row.kept))
            new = tokens[first : first + row.count]
            history.write(row.position, new, self._context_length)
            first += row.count

    def draw_rows(self, step: Step) -> list[DrawRow]:
        """How to draw each wanted row of logits, in row order; after `apply`.

        Row j of a sequence sees the tokens up to its own and no draft behind it; in a token tree
        those on its own path. `tokens` may be views that the next `apply` changes, and are only
        there where a penalty needs them.
        Raises StageFailed: a mask cannot be split by logit row.
        """
        drawn: list[DrawRow] = []
        for row in step.rows:
            if row.logits:
                drawn += self._drawn(row)
        return drawn

    def tokens(self, sequence: int) -> NDArray[np.int32]:
        """A read-only view, valid until the next `apply`; empty when the sequence is unknown."""
        history = self._known.get(sequence)
        return _NOTHING if history is None else history.tokens(history.length)

    def sequences(self) -> tuple[int, ...]:
        """Those that were opened or had a row, and were not dropped since."""
        return tuple(self._known)

    def cut(self, sequence: int, length: int) -> None:
        """Forget the tokens from position `length` on. Raises StageFailed: fewer are known."""
        history = self._known.get(sequence)
        known = 0 if history is None else history.length
        if not 0 <= length <= known:
            raise StageFailed(
                f"Sequence {sequence} cannot be cut to {length} tokens: {known} are known.", _BUG
            )
        if history is not None:
            history.length = length

    def drop(self, sequences: Iterable[int]) -> None:
        """Forget them; unknown ones are ignored, for an end may be told twice."""
        for sequence in sequences:
            self._known.pop(sequence, None)

    def _check(self, step: Step) -> None:
        token_count(step)
        if len({row.sequence for row in step.rows}) != len(step.rows):
            raise StageFailed("A sequence has two rows in one step.", _BUG)
        for row in step.rows:
            source = row.sequence if row.fork_from is None else row.fork_from
            known = self._length(source)
            needed = max(row.position, row.kept[-1] + 1 if row.kept else 0)
            if needed > known:
                raise StageFailed(
                    f"A row builds on {needed} tokens of sequence {source}, of which {known} "
                    "are known.",
                    "Compute it again from its first token.",
                )
            if row.position + row.count > self._context_length:
                raise StageFailed(
                    f"Sequence {row.sequence} would have {row.position + row.count} tokens; the "
                    f"context has {self._context_length}.",
                    "Shorten the prompt or the answer.",
                )

    def _length(self, sequence: int) -> int:
        history = self._known.get(sequence)
        return 0 if history is None else history.length

    def _forked(self, rows: tuple[Row, ...]) -> Iterator[NDArray[np.int32] | None]:
        """For each row the tokens that it takes over, as they were before this step: its source may
        be rewound and overwritten in the same one."""
        sources = [
            None if row.fork_from is None else self.tokens(row.fork_from)[: row.position].copy()
            for row in rows
        ]
        return iter(sources)

    def _drawn(self, row: Row) -> Iterator[DrawRow]:
        history = self._known[row.sequence]
        is_needed = needs_tokens(row.sampling)
        width, rest = divmod(len(row.mask), row.logits)
        if rest:
            raise StageFailed(
                f"A mask of {len(row.mask)} bytes came for {row.logits} rows of logits.", _BUG
            )
        first = row.count - row.logits
        for index in range(row.logits):
            length = depth(row, first + index) + 1
            yield DrawRow(
                sampling=row.sampling,
                position=row.position + length,
                tokens=history.path(row, first + index) if is_needed else None,
                prompt_length=history.prompt_length,
                bias=history.bias,
                mask=row.mask[index * width : (index + 1) * width],
            )


class _History:
    """One sequence. `length` tokens of the buffer count."""

    __slots__ = ("_buffer", "bias", "length", "prompt_length")

    def __init__(self) -> None:
        self._buffer = np.empty(_LEAST_ROOM, np.int32)
        self.length = 0
        self.prompt_length = 0
        self.bias: tuple[tuple[int, float], ...] = ()

    def write(self, position: int, new: NDArray[np.int32], most: int) -> None:
        """`new` from `position` on; whatever was behind is gone. `most` is the context."""
        end = position + len(new)
        if end > len(self._buffer):
            room = min(max(end, 2 * len(self._buffer)), max(most, end))
            grown = np.empty(room, np.int32)
            grown[:position] = self._buffer[:position]
            self._buffer = grown
        self._buffer[position:end] = new
        self.length = end

    def gather(self, slots: tuple[int, ...], target: int) -> None:
        """The tokens in these slots move to `target` and behind it."""
        if slots:
            self._buffer[target : target + len(slots)] = self._buffer[list(slots)]

    def path(self, row: Row, place: int) -> NDArray[np.int32]:
        """All tokens up to that of the row's `place`, which stand in front of it."""
        if not row.parents:
            return self.tokens(row.position + place + 1)
        slots = [row.position + one for one in path(row.parents, place)]
        return np.concatenate([self._buffer[: row.position], self._buffer[slots]])

    def tokens(self, length: int) -> NDArray[np.int32]:
        view = self._buffer[:length]
        view.flags.writeable = False
        return view


_NOTHING = np.empty(0, np.int32)
_NOTHING.flags.writeable = False
