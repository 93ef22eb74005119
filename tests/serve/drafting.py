"""A draft model that knows the truth and tells it as often as it is asked to."""

from __future__ import annotations

import random
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf

from meshinfer.core.draft import DraftNode
from meshinfer.serve.sequence import Sequence
from meshinfer.serve.speculation import Speculation
from tests.serve.bookkeeping import next_token

Truth = Callable[[SequenceOf[int]], int]
"""What the large model says behind these tokens."""


class StubDraft:
    """Guesses a tree of its own for each sequence: a child of what is known or guessed at a time,
    right with `accuracy`, as it also says. `width` is how many children a place gets."""

    def __init__(
        self,
        speculation: Speculation,
        accuracy: float,
        width: int = 1,
        seed: int = 1,
        truth: Truth = next_token,
    ) -> None:
        self._speculation = speculation
        self._accuracy = accuracy
        self._width = width
        self._random = random.Random(seed)
        self._truth = truth
        self._number = 0
        self._tips: dict[int, tuple[list[int], int | None]] = {}  # text of the path, last number

    def hear(self, running: SequenceOf[Sequence]) -> None:
        """What runs now; the book follows."""
        living = {one.key: one for one in running}
        for key in set(self._tips) - set(living):
            del self._tips[key]
            self._speculation.book.close(key)
        for key, one in living.items():
            known = one.tokens
            path, _ = self._tips.get(key, ([], None))
            if key not in self._tips:
                self._speculation.book.open(key, known)
            if path[: len(known)] != known:
                self._tips[key] = (list(known), None)

    def guess(self, seconds: float = 0.0) -> None:
        """One level for each sequence that it heard of."""
        nodes = []
        for key, (path, parent) in self._tips.items():
            self._tips[key] = ([*path, token := self._first(path)], self._number + 1)
            others = [self._truth(path) + step for step in range(self._width)]
            for place, one in enumerate([token, *(o for o in others if o != token)][: self._width]):
                self._number += 1
                chance = (1 - self._accuracy) * 0.5 if place else self._accuracy
                nodes.append((key, DraftNode(self._number, parent, len(path), one, chance)))
        self._speculation.take(nodes, len(nodes), seconds)

    def _first(self, path: list[int]) -> int:
        return self._truth(path) + (self._random.random() >= self._accuracy)
