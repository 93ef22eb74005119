"""Speculation never changes an answer, whatever is guessed, lost or refused."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshinfer.core.request import FinishReason
from meshinfer.serve.scheduler import Scheduler, SchedulerLimits
from meshinfer.serve.speculation import Speculation, SpeculationOptions
from meshinfer.serve.step_choice import StepLimits
from meshinfer.serve.step_cost import StepCost
from tests.serve.bookkeeping import (
    BookkeepingStage,
    Disturbed,
    Drive,
    allowed,
    alone,
    next_token,
    sequence,
)
from tests.serve.drafting import StubDraft


class Guessing:
    """A scheduler with a draft, in time that passes a little every turn."""

    def __init__(
        self,
        stages: int = 2,
        blocks: int = 64,
        trees: bool = False,
        hops_s: float = 0.1,
        slope_s: float = 0.0005,
    ) -> None:
        curve = [(tokens, 0.05 + slope_s * tokens) for tokens in (1, 2, 4, 8, 16, 32, 64, 256)]
        cost = StepCost(stages, [curve] * stages)
        for _ in range(64):
            cost.observe(1, [0.05] * stages, hops_s)
        self.now = 0.0
        self.speculation = Speculation(cost, SpeculationOptions(trees), lambda: self.now)
        limits = SchedulerLimits(blocks * 8, 8, StepLimits(step_tokens=32))
        self.scheduler = Scheduler(limits, cost, self.speculation)
        self.stage = BookkeepingStage(blocks * 8, 8)
        self.drive = Drive(self.scheduler, self.stage)

    def tick(self, draft: StubDraft, levels: int = 3) -> None:
        self.now += 0.05
        draft.hear(self.scheduler.running_sequences)
        for _ in range(levels):
            draft.guess(0.01)


ASKED = st.lists(
    st.tuples(st.lists(st.sampled_from([0, 1, 2]), max_size=2), st.integers(1, 14)),
    min_size=1,
    max_size=6,
)


@settings(max_examples=150, deadline=None)
@given(
    asked=ASKED,
    stages=st.integers(1, 3),
    blocks=st.integers(22, 60),
    accuracy=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    width=st.integers(1, 3),
    trees=st.booleans(),
    hops_s=st.sampled_from([0.0, 0.2]),
    losses=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20)), max_size=6),
    leave=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 25)), max_size=3),
)
def test_every_answer_equals_its_lone_run(
    asked: list[tuple[list[int], int]],
    stages: int,
    blocks: int,
    accuracy: float,
    width: int,
    trees: bool,
    hops_s: float,
    losses: list[tuple[int, int]],
    leave: list[tuple[int, int]],
) -> None:
    """C18, and rewinding while caches are lost, clients leave and the cache runs short."""
    all_of = Guessing(stages, blocks, trees, hops_s)
    draft = StubDraft(all_of.speculation, accuracy, width)
    disturbed = Disturbed(all_of.scheduler, all_of.stage, asked, losses, leave)

    def interfere(turn: int) -> None:
        disturbed.interfere(turn)
        all_of.tick(draft)

    all_of.drive.run(interfere, least=45)
    disturbed.check()
    for index, one in enumerate(disturbed.sequences):
        assert index in disturbed.gone or one.finish is FinishReason.LENGTH


@pytest.mark.parametrize("trees", [False, True])
@pytest.mark.parametrize(("accuracy", "most"), [(0.0, 110), (0.5, 90), (1.0, 40)])
def test_right_guesses_save_steps(trees: bool, accuracy: float, most: int) -> None:
    all_of = Guessing(3, trees=trees)
    draft = StubDraft(all_of.speculation, accuracy, 3 if trees else 1)
    one = sequence([5, 6, 7], 100)
    all_of.scheduler.admit(one)
    all_of.drive.run(lambda turn: all_of.tick(draft, 8))
    assert one.tokens == alone([5, 6, 7], 100)
    first_rows = [step for step in all_of.drive.steps if step.rows and step.rows[0].position < 103]
    assert len(first_rows) <= most


class Classes:
    """A grammar: a token of class 0, then one of class 1, 2, 0 and so on; complete after some."""

    def __init__(self, length: int, taken: int = 0) -> None:
        self.length, self.taken = length, taken

    def mask(self) -> bytes:
        allowed = [token % 3 == self.taken % 3 for token in range(1000)]
        return np.packbits(allowed, bitorder="little").tobytes()

    def accept(self, token: int) -> None:
        assert token % 3 == self.taken % 3
        self.taken += 1

    def copy(self) -> Classes:
        return Classes(self.length, self.taken)

    @property
    def is_complete(self) -> bool:
        return self.taken >= self.length


@pytest.mark.parametrize("accuracy", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("trees", [False, True])
def test_a_grammar_rules_drafts_as_well(trees: bool, accuracy: float) -> None:
    def ruled(tokens: SequenceOf[int]) -> int:
        return allowed(next_token(tokens), Classes(99, len(tokens) - 3).mask())

    for length in (1, 7, 40):
        all_of = Guessing(2, trees=trees)
        draft = StubDraft(all_of.speculation, accuracy, 2, truth=ruled)
        one = sequence([5, 6, 7], 30)
        one.constraint = Classes(length)
        all_of.scheduler.admit(one)
        all_of.drive.run(lambda turn, all_of=all_of, draft=draft: all_of.tick(draft, 8))
        expected = [5, 6, 7]
        for _ in range(min(length, 30)):
            expected.append(ruled(expected))
        assert one.tokens == expected
        assert one.finish is (FinishReason.STOP if length < 30 else FinishReason.LENGTH)
        if accuracy == 1.0 and length == 40:
            assert len(all_of.drive.steps) < 15


@pytest.mark.parametrize("drafts", [0, 1, 3, 8])
@pytest.mark.parametrize("right", [0.0, 0.5, 1.0])
def test_a_request_may_say_how_many_drafts_it_wants(drafts: int, right: float) -> None:
    """C18: one to eight drafts, right always, half the time, never."""
    all_of = Guessing(3, hops_s=0.0)
    draft = StubDraft(all_of.speculation, right)
    one = sequence([5, 6, 7], 60)
    one.drafts = drafts
    all_of.scheduler.admit(one)
    all_of.drive.run(lambda turn: all_of.tick(draft, 8))
    assert one.tokens == alone([5, 6, 7], 60)
    counts = [step.rows[0].count - 1 for step in all_of.drive.steps[1:] if step.rows]
    assert max(counts) == drafts
    if right == 1.0:
        assert len(counts) <= 60 // (drafts + 1) + 2
