"""The draft model at work, on the toy engine: every guess is what a lone run says there."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from meshinfer.core.draft import DraftNode, Horizon
from meshinfer.core.model import UnitRange
from meshinfer.core.request import GREEDY, Sampling
from meshinfer.core.step import Row, Step
from meshinfer.engine.sampling import DrawRow, draw
from meshinfer.engine.toy import ToyStage
from meshinfer.serve.draft_book import DraftMirror
from meshinfer.serve.guess_candidates import guesses
from meshinfer.serve.guess_steps import CHUNK, ROWS, GuessSteps
from meshinfer.serve.guess_tree import MOST_NODES
from tests.serve.chain import TOY

LEAST = 0.02
SHARP = np.float32(12)
"""The toy's own logits are nearly flat: nothing would ever be likely."""

WHOLE = UnitRange(0, len(TOY.shape().units))


def lone(tokens: list[int]) -> NDArray[np.float32]:
    """Logits behind a text."""
    stage = ToyStage(WHOLE, TOY, 1024)
    return SHARP * stage.forward(Step(0, (Row(1, 0, len(tokens), 1),), tuple(tokens)), None)


class Draft:
    """The draft's half, and the leader's mirror of it."""

    def __init__(self, cache_tokens: int = 2048, context_length: int = 400) -> None:
        self.stage = ToyStage(WHOLE, TOY, cache_tokens)
        shape = self.stage.shape
        self.steps = GuessSteps(shape.cache_tokens, shape.block_size, context_length)
        self.texts: dict[int, list[int]] = {}
        self.mirrors: dict[int, DraftMirror] = {}
        self.paths: dict[tuple[int, int], list[int]] = {}  # whole text of every guess

    def tell(
        self,
        key: int,
        position: int,
        tokens: list[int],
        depth: int = 8,
        sampling: Sampling = GREEDY,
    ) -> None:
        known = self.texts.setdefault(key, [])
        del known[position:]
        known += tokens
        assert self.steps.know(key, position, tokens, Horizon(depth, LEAST), sampling)
        if key in self.mirrors:
            self.mirrors[key].know(known)
        else:
            self.mirrors[key] = DraftMirror(known)

    def step(self) -> list[tuple[int, DraftNode]] | None:
        """One step; None: nothing is of use."""
        made = self.steps.next()
        if made is None:
            return None
        assert len(made.step.rows) <= ROWS
        assert made.step.token_count <= CHUNK
        logits = SHARP * self.stage.forward(made.step, None)
        wanted = [(one.sampling, one.position) for one in made.whole]
        nodes = []
        for expansion, pairs in zip(
            made.whole, guesses(logits, wanted, None, 256) if wanted else [], strict=True
        ):
            parent_text = [*self.texts[expansion.sequence], *expansion.place.tail]
            for node in self.steps.expand(expansion, pairs):
                self.paths[expansion.sequence, node.number] = [*parent_text, node.token]
                self.mirrors[expansion.sequence].add(node)
                nodes.append((expansion.sequence, node))
        return nodes

    def check(self, key: int, node: DraftNode, sampling: Sampling = GREEDY) -> None:
        text = self.paths[key, node.number]
        assert node.position == len(text) - 1
        found = guesses(lone(text[:-1]), [(sampling, node.position)], None, 256)
        assert (node.token, pytest.approx(node.chance)) in found[0]


def test_guesses_grow_along_the_likeliest_path_first() -> None:
    draft = Draft()
    draft.tell(1, 0, list(range(40, 60)))
    made = [draft.step() for _ in range(6)]
    assert all(nodes for nodes in made)
    for nodes in made:
        for key, node in nodes or []:
            draft.check(key, node)
    first, second = (nodes[0][1] for nodes in made[:2] if nodes)
    assert second.parent == first.number


def test_it_rests_when_nothing_is_of_use() -> None:
    draft = Draft()
    draft.tell(1, 0, [5, 6, 7], depth=2)
    for _ in range(200):
        if draft.step() is None:
            break
    else:
        pytest.fail("it never rests")
    draft.tell(1, 3, [9], depth=0)
    assert draft.step() is None
    draft.tell(1, 4, [9], depth=1)
    assert draft.step()
    assert draft.step() is None


def test_a_long_text_is_taken_in_chunks_and_others_are_not_held_up() -> None:
    draft = Draft()
    draft.tell(1, 0, [index % 250 for index in range(300)])
    draft.tell(2, 0, [1, 2, 3])
    keys: set[int] = set()
    for _ in range(12):
        keys |= {key for key, _ in draft.step() or []}
        if keys == {1, 2}:
            return
    pytest.fail("one of the two was never guessed at")


def test_choices_of_one_request_share_what_they_begin_with() -> None:
    draft = Draft()
    text = list(range(100))
    draft.tell(1, 0, text)
    while not draft.step():
        pass
    draft.tell(2, 0, text)
    made = draft.steps.next()
    assert made is not None
    assert [row.count for row in made.step.rows if row.fork_from is not None][:1] == [1]


def test_a_sampled_request_is_guessed_with_its_own_numbers() -> None:
    hot = Sampling(temperature=1.0, seed=77)
    draft = Draft()
    draft.tell(1, 0, [3, 1, 4, 1, 5], sampling=hot)
    nodes = draft.step()
    assert nodes
    expected = draw(lone([3, 1, 4, 1, 5]), [DrawRow(hot, 5)])[0].token
    assert nodes[0][1].token == expected


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    blocks=st.integers(12, 60),
    orders=st.lists(st.integers(0, 9), min_size=5, max_size=40),
)
def test_what_is_cached_is_never_mistaken(seed: int, blocks: int, orders: list[int]) -> None:
    """Texts grow along guesses and beside them, are corrected, end and begin alike, in a cache that
    is too small for all: every guess is that of a lone run, both sides keep the same tree."""
    chance = np.random.default_rng(seed)
    draft = Draft(cache_tokens=blocks * 16, context_length=120)
    alive: list[int] = []
    for order in orders:
        if order == 0 or not alive:
            key = len(draft.texts) + 1
            draft.tell(key, 0, [int(one) for one in range(2, 2 + int(chance.integers(1, 60)))])
            alive.append(key)
        elif order == 1:
            gone = alive.pop(int(chance.integers(len(alive))))
            draft.steps.end(gone)
            del draft.mirrors[gone]
        elif order < 6:
            key = alive[int(chance.integers(len(alive)))]
            mirror = draft.mirrors[key]
            count = int(chance.integers(1, 4))
            tokens: list[int] = []
            for _ in range(count):
                below = mirror.after(tokens)
                likely = max(below.values(), key=lambda one: one.chance) if below else None
                is_right = likely is not None and chance.random() < 0.8
                tokens.append(likely.token if likely and is_right else int(chance.integers(256)))
            if len(mirror.tokens) + count < 110:
                draft.tell(key, len(mirror.tokens), tokens, int(chance.integers(0, 9)))
        for key, node in draft.step() or []:
            draft.check(key, node)
    for key in alive:
        watched = draft.steps._watched[key]
        assert len(draft.mirrors[key]) == len(watched.tree) <= MOST_NODES + 3 * ROWS
        assert watched.tree.known == draft.texts[key]
        assert all(0 <= place.reach <= 1 for place in watched.tree.best())
        assert all(place.reach >= LEAST for place in watched.tree.best())
