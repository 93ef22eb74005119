"""The scheduler, driven by a stage that only keeps the books: positions, cache, order."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshinfer.core.request import GREEDY, FinishReason
from meshinfer.core.step import Sampled, Step
from meshinfer.errors import Overloaded
from meshinfer.serve.scheduler import Scheduler, SchedulerLimits
from meshinfer.serve.sequence import Sequence, SequenceState

STOP = 999


class BookkeepingStage:
    """Refuses what a real stage would: gaps, unknown sequences, more cache than there is."""

    def __init__(self, cache_tokens: int, block_size: int) -> None:
        self.blocks = cache_tokens // block_size
        self.block_size = block_size
        self.cached: dict[int, list[int]] = {}

    def run(self, step: Step) -> list[Sampled]:
        for key in step.released:
            del self.cached[key]
        drawn, taken = [], 0
        for row in step.rows:
            tokens = self.cached.setdefault(row.sequence, [])
            assert row.position == len(tokens), "a gap or a repetition in the cache"
            tokens.extend(step.tokens[taken : taken + row.count])
            taken += row.count
            drawn += [Sampled(next_token(tokens), 0.0)] * row.logits
        assert taken == len(step.tokens)
        used = sum(-(-len(tokens) // self.block_size) for tokens in self.cached.values())
        assert used <= self.blocks, "more cache than the plan has"
        return drawn


def next_token(tokens: list[int]) -> int:
    """Depends on every token, so that a lost or repeated one shows."""
    return (sum((index + 1) * token for index, token in enumerate(tokens)) * 31 + 7) % 997


def sequence(scheduler: Scheduler, prompt: list[int], limit: int) -> Sequence:
    return Sequence(scheduler.new_key(), list(prompt), len(prompt), GREEDY, limit, (STOP,))


def alone(prompt: list[int], limit: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(limit):
        tokens.append(next_token(tokens))
    return tokens


def drive(scheduler: Scheduler, stage: BookkeepingStage, depth: int) -> None:
    """Run until nothing is left, keeping `depth` steps under way; bounded."""
    flying: list[tuple[Step, list[Sampled]]] = []
    for _ in range(100_000):
        while (step := scheduler.next_step()) is not None:
            flying.append((step, stage.run(step)))
            assert len(flying) <= depth
        if not flying:
            return
        step, drawn = flying.pop(0)
        scheduler.commit(step.number, drawn)
    pytest.fail("the scheduler never came to rest")


REQUESTS = st.lists(
    st.tuples(st.lists(st.integers(0, 996), min_size=1, max_size=90), st.integers(1, 25)),
    min_size=1,
    max_size=12,
)


@settings(max_examples=150, deadline=None)
@given(requests=REQUESTS, depth=st.integers(1, 5), blocks=st.integers(15, 60))
def test_every_answer_equals_its_lone_run(
    requests: list[tuple[list[int], int]], depth: int, blocks: int
) -> None:
    """Whatever the company, the depth and the shortage of cache."""
    limits = SchedulerLimits(blocks * 8, depth, block_size=8, step_tokens=24)
    scheduler, stage = Scheduler(limits), BookkeepingStage(blocks * 8, 8)
    sequences = [sequence(scheduler, prompt, limit) for prompt, limit in requests]
    for one in sequences:
        scheduler.admit(one)
    drive(scheduler, stage, depth)
    for one, (prompt, limit) in zip(sequences, requests, strict=True):
        assert one.tokens == alone(prompt, limit)
        assert one.finish is FinishReason.LENGTH
        assert one.state is SequenceState.FINISHED
    assert scheduler.running == scheduler.waiting == scheduler.in_flight == 0


@settings(max_examples=80, deadline=None)
@given(
    requests=REQUESTS,
    depth=st.integers(1, 4),
    leave=st.lists(st.tuples(st.integers(0, 11), st.integers(0, 30)), max_size=8),
)
def test_cancelled_requests_leave_no_trace(
    requests: list[tuple[list[int], int]], depth: int, leave: list[tuple[int, int]]
) -> None:
    limits = SchedulerLimits(800, depth, block_size=8, step_tokens=24)
    scheduler, stage = Scheduler(limits), BookkeepingStage(800, 8)
    sequences = [sequence(scheduler, prompt, limit) for prompt, limit in requests]
    for one in sequences:
        scheduler.admit(one)
    flying: list[tuple[Step, list[Sampled]]] = []
    gone: set[int] = set()
    for turn in range(10_000):
        for who, when in leave:
            if when == turn and who < len(sequences):
                scheduler.end(sequences[who])
                gone.add(id(sequences[who]))
        while (step := scheduler.next_step()) is not None:
            flying.append((step, stage.run(step)))
        if not flying and turn > 30:
            break
        if flying:
            step, drawn = flying.pop(0)
            for advance in scheduler.commit(step.number, drawn):
                assert id(advance.sequence) not in gone
    left = {who for who, _ in leave}
    for index, (one, (prompt, limit)) in enumerate(zip(sequences, requests, strict=True)):
        whole = alone(prompt, limit)
        assert one.tokens == whole if index not in left else one.tokens == whole[: len(one.tokens)]
    assert scheduler.running == scheduler.waiting == 0


def test_a_pipeline_of_three_is_filled_by_three_sequences() -> None:
    scheduler = Scheduler(SchedulerLimits(4096, 3, block_size=32))
    for _ in range(3):
        scheduler.admit(sequence(scheduler, [1, 2, 3], 5))
    steps = [scheduler.next_step() for _ in range(4)]
    assert [len(step.rows) for step in steps[:3] if step] == [1, 1, 1]
    assert steps[3] is None


def test_prompt_chunks_follow_each_other_without_waiting() -> None:
    scheduler = Scheduler(SchedulerLimits(4096, 3, block_size=32, step_tokens=100))
    scheduler.admit(sequence(scheduler, list(range(250)), 5))
    steps = [scheduler.next_step() for _ in range(3)]
    rows = [step.rows[0] for step in steps if step]
    assert [(row.position, row.count, row.logits) for row in rows] == [
        (0, 100, 0),
        (100, 100, 0),
        (200, 50, 1),
    ]


def test_a_long_prompt_does_not_stop_those_who_decode() -> None:
    scheduler = Scheduler(SchedulerLimits(4096, 1, block_size=32, step_tokens=64))
    stage = BookkeepingStage(4096, 32)
    quick = sequence(scheduler, [5], 50)
    scheduler.admit(quick)
    step = scheduler.next_step()
    assert step is not None
    scheduler.commit(step.number, stage.run(step))
    scheduler.admit(sequence(scheduler, list(range(900)), 1))
    for _ in range(10):
        step = scheduler.next_step()
        assert step is not None
        assert quick.key in {row.sequence for row in step.rows}
        scheduler.commit(step.number, stage.run(step))


def test_too_many_waiting_is_said() -> None:
    scheduler = Scheduler(SchedulerLimits(4096, 1, block_size=32, waiting=2))
    for _ in range(2):
        scheduler.admit(sequence(scheduler, [1], 1))
    with pytest.raises(Overloaded, match="2 requests wait"):
        scheduler.admit(sequence(scheduler, [1], 1))


def test_a_failed_step_names_its_living_sequences_and_the_rest_go_on() -> None:
    scheduler = Scheduler(SchedulerLimits(4096, 2, block_size=32))
    first, second = (sequence(scheduler, [token], 3) for token in (1, 2))
    scheduler.admit(first)
    scheduler.admit(second)
    steps = [scheduler.next_step(), scheduler.next_step()]
    assert steps[0] is not None
    failed = scheduler.fail(steps[0].number)
    assert failed == (first,)
    scheduler.end(first)
    assert steps[1] is not None
    (advance,) = scheduler.commit(steps[1].number, [Sampled(4, 0.0)])
    assert advance.sequence is second
    following = scheduler.next_step()
    assert following is not None
    assert following.released == (first.key,)


def test_a_stop_token_ends_the_sequence() -> None:
    one = Sequence(1, [5], 1, GREEDY, 10, (STOP,))
    one.append(7)
    assert one.finish is None
    one.append(STOP)
    assert one.finish is FinishReason.STOP
