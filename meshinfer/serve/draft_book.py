"""What the draft model has guessed so far, as the leader knows it. Pure.

Mirrors the tree that grows at the draft (`serve.draft_tree`), one for each sequence: guesses arrive
while a step is under way, what is drawn then decides which of them still count. Both sides follow
the same rule, so that nothing but guesses and known tokens travels.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf

from meshinfer.core.draft import DraftNode

MOST_NODES = 512
"""Of one sequence; the draft keeps fewer."""


class DraftMirror:
    """One sequence: `length` tokens are known, guesses stand behind them."""

    def __init__(self, tokens: SequenceOf[int]) -> None:
        self.tokens = list(tokens)
        self.heard = False  # whether any guess of it has come
        self._agreed: set[int] = set()  # guesses that became known tokens
        self._nodes: dict[int, DraftNode] = {}
        self._first: dict[int, DraftNode] = {}  # guesses of the next token, by token
        self._children: dict[int, dict[int, DraftNode]] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def add(self, node: DraftNode) -> bool:
        """Take a guess; False when it is of no use any more: it follows what was not drawn."""
        self.heard = True
        follows_known = node.parent is None or node.parent in self._agreed
        if node.position < len(self.tokens):
            if follows_known and self.tokens[node.position] == node.token:
                self._agreed.add(node.number)
            return False
        if node.position == len(self.tokens):
            if not follows_known or len(self._nodes) >= MOST_NODES:
                return False
            self._first[node.token] = node
        else:
            parent = None if node.parent is None else self._nodes.get(node.parent)
            if parent is None or len(self._nodes) >= MOST_NODES:
                return False
            self._children.setdefault(parent.number, {})[node.token] = node
        self._nodes[node.number] = node
        return True

    def know(self, tokens: SequenceOf[int]) -> list[tuple[list[DraftNode], int]]:
        """Tokens of the sequence; it has only grown. What was guessed in the place of each new one,
        and the token: guesses that were never sent to a stage tell how good the draft is, too."""
        told = []
        for token in tokens[len(self.tokens) :]:
            told.append((list(self._first.values()), token))
            self._step(token)
        return told

    def first(self) -> dict[int, DraftNode]:
        """Guesses of the next token, by token."""
        return self._first

    def children(self, node: DraftNode) -> dict[int, DraftNode]:
        return self._children.get(node.number, {})

    def after(self, tail: SequenceOf[int]) -> dict[int, DraftNode]:
        """Guesses of the token behind the known ones and `tail`, by token."""
        found = self._first
        for token in tail:
            node = found.get(token)
            if node is None:
                return {}
            found = self.children(node)
        return found

    def _step(self, token: int) -> None:
        self.tokens.append(token)
        node = self._first.get(token)
        if node is None:
            self._first, self._children, self._nodes = {}, {}, {}
            return
        self._agreed.add(node.number)
        if len(self._agreed) > MOST_NODES:
            self._agreed = {one for one in self._agreed if one > node.number - MOST_NODES}
        self._first = self._children.get(node.number, {})
        self._keep_below()

    def _keep_below(self) -> None:
        """Forget what does not hang on the next token any more."""
        nodes: dict[int, DraftNode] = {}
        children: dict[int, dict[int, DraftNode]] = {}
        stack = list(self._first.values())
        while stack:
            node = stack.pop()
            nodes[node.number] = node
            below = self._children.get(node.number)
            if below:
                children[node.number] = below
                stack += below.values()
        self._nodes, self._children = nodes, children


class DraftBook:
    """All sequences that the draft was told of, by their key on the ring."""

    def __init__(self) -> None:
        self._mirrors: dict[int, DraftMirror] = {}

    def open(self, key: int, tokens: SequenceOf[int]) -> None:
        """The draft is told of a sequence."""
        self._mirrors[key] = DraftMirror(tokens)

    def mirror(self, key: int) -> DraftMirror | None:
        return self._mirrors.get(key)

    def take(self, nodes: SequenceOf[tuple[int, DraftNode]]) -> int:
        """Guesses that arrived; how many are of use."""
        used = 0
        for key, node in nodes:
            mirror = self._mirrors.get(key)
            used += mirror is not None and mirror.add(node)
        return used

    def close(self, key: int) -> bool:
        """Whether the draft knew of it."""
        return self._mirrors.pop(key, None) is not None

    def clear(self) -> None:
        """The draft is gone."""
        self._mirrors.clear()

    def keys(self) -> Iterator[int]:
        return iter(list(self._mirrors))
