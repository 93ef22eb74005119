"""What a draft model has guessed of one sequence: a tree behind the known tokens. Pure.

Grows place by place, the likeliest first; when tokens become known, what hangs on those that were
guessed is kept. The leader mirrors it from what it is sent (`serve.draft_book`): both follow one
rule.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from meshinfer.core.draft import DraftNode, Horizon

MOST_NODES = 128


@dataclass(frozen=True, slots=True)
class Place:
    """Where guesses may be added: behind the known tokens (`node` None), or behind a guess."""

    node: DraftNode | None
    tail: tuple[int, ...]  # tokens from the known ones to the place, its own included
    reach: float  # 0..1, that all of them are right


class GuessTree:
    """`known` are the sequence's tokens. Nothing is guessed beyond the `horizon`, so that a draft
    that is of no use leaves its core to others, nor behind one of the tokens `ends`."""

    def __init__(
        self, tokens: SequenceOf[int], horizon: Horizon, ends: Collection[int] = ()
    ) -> None:
        self.known = list(tokens)
        self.horizon = horizon
        self._ends = ends
        self._root: int | None = None  # the guess that became the last known token, if one did
        self._children: dict[int | None, list[Place]] = {}
        self._open: dict[int | None, Place] = {None: Place(None, (), 1.0)}  # not yet expanded
        self._last_number = 0

    def __len__(self) -> int:
        return sum(map(len, self._children.values()))

    def know(self, position: int, tokens: SequenceOf[int]) -> None:
        """These are the tokens from `position` on, which is at most the known length."""
        for index, token in enumerate(tokens, position):
            if index < len(self.known):
                if self.known[index] == token:
                    continue
                del self.known[index:]
                self._start(None)
            self._step(token)

    def best(self) -> Iterator[Place]:
        """Places to expand, the likeliest first."""
        if len(self) >= MOST_NODES:
            return iter(())
        return iter(sorted(self._open.values(), key=lambda place: -place.reach))

    @property
    def is_bare(self) -> bool:
        """Whether not even the next token was guessed."""
        return self._root in self._open

    def expand(self, place: Place, guesses: SequenceOf[tuple[int, float]]) -> list[DraftNode]:
        """(token, chance) of what may follow the place; the new guesses. None, when the place has
        gone meanwhile: what it stood for was not drawn."""
        number = None if place.node is None else place.node.number
        here = self._open.pop(self._root if number is None else number, None)
        if here is None:
            return []
        position = len(self.known) + len(here.tail)
        made = []
        for token, chance in guesses:
            self._last_number += 1
            parent = self._root if here.node is None else here.node.number
            node = DraftNode(self._last_number, parent, position, token, chance)
            below = Place(node, (*here.tail, token), here.reach * chance)
            self._children.setdefault(parent, []).append(below)
            self._offer(below)
            made.append(node)
        return made

    def _offer(self, place: Place) -> None:
        """It may be expanded, if that is of use."""
        node = place.node
        assert node is not None
        if (
            place.reach >= self.horizon.least
            and len(place.tail) < self.horizon.depth
            and node.token not in self._ends
        ):
            self._open[node.number] = place

    def _step(self, token: int) -> None:
        """One more token is known."""
        self.known.append(token)
        below = self._children.get(self._root, [])
        right = next((one for one in below if one.tail == (token,)), None)
        self._start(None if right is None else right.node)

    def _start(self, root: DraftNode | None) -> None:
        """Keep what hangs on this guess, which is known now; None: nothing is left."""
        old, self._children = self._children, {}
        was_open, self._open = self._open, {}
        self._root = None if root is None else root.number
        if root is None or root.number in was_open or root.number not in old:
            self._open[self._root] = Place(None, (), 1.0)
        stack: list[tuple[int, tuple[int, ...], float]] = []
        if root is not None:
            stack.append((root.number, (), 1.0))
        while stack:
            number, tail, reach = stack.pop()
            for child in old.get(number, ()):
                node = child.node
                assert node is not None
                moved = Place(node, (*tail, node.token), reach * node.chance)
                self._children.setdefault(number, []).append(moved)
                stack.append((node.number, moved.tail, moved.reach))
                if node.number in was_open or node.number not in old:
                    self._offer(moved)
