"""Speculation never changes an answer, whatever is guessed, lost or refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshinfer.core.request import FinishReason
from meshinfer.serve.scheduler import Scheduler, SchedulerLimits
from meshinfer.serve.speculation import Speculation, SpeculationOptions
from meshinfer.serve.step_choice import StepLimits
from meshinfer.serve.step_cost import StepCost
from tests.serve.bookkeeping import BookkeepingStage, Drive, alone, sequence
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


WORDS = [list(range(10, 50)), list(range(10, 30)) + list(range(60, 90)), list(range(200, 230))]
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
    scheduler, stage = all_of.scheduler, all_of.stage
    draft = StubDraft(all_of.speculation, accuracy, width)
    prompts = [sum((WORDS[word] for word in words), []) + [7] for words, _ in asked]
    sequences = [sequence(prompt, limit) for prompt, (_, limit) in zip(prompts, asked, strict=True)]
    gone: set[int] = set()

    def interfere(turn: int) -> None:
        if turn < len(sequences):
            scheduler.admit(sequences[turn])
        for who, when in leave:
            if when == turn and who < min(turn, len(sequences)):
                scheduler.end(sequences[who])
                gone.add(who)
        for when, which in losses:
            if when == turn and stage.tokens:
                stage.forget(sorted(stage.tokens)[which % len(stage.tokens)])
        all_of.tick(draft)

    all_of.drive.run(interfere, least=45)
    for index, (one, prompt) in enumerate(zip(sequences, prompts, strict=True)):
        whole = alone(prompt, asked[index][1])
        assert one.tokens == (whole if index not in gone else whole[: len(one.tokens)])
        assert index in gone or one.finish is FinishReason.LENGTH
    assert scheduler.running == scheduler.waiting == scheduler.in_flight == 0
    held = scheduler.renew()
    assert set(stage.tokens) <= set(held), "a stage holds what nobody will ask for"


@pytest.mark.parametrize("trees", [False, True])
@pytest.mark.parametrize(("accuracy", "most"), [(0.0, 110), (0.5, 90), (1.0, 30)])
def test_right_guesses_save_steps(trees: bool, accuracy: float, most: int) -> None:
    all_of = Guessing(3, trees=trees)
    draft = StubDraft(all_of.speculation, accuracy, 3 if trees else 1)
    one = sequence([5, 6, 7], 100)
    all_of.scheduler.admit(one)
    all_of.drive.run(lambda turn: all_of.tick(draft, 8))
    assert one.tokens == alone([5, 6, 7], 100)
    first_rows = [
        step for step in all_of.drive.steps if step.rows and step.rows[0].position < 103
    ]
    assert len(first_rows) <= most
