"""The scheduler, driven by a stage that only keeps the books: positions, cache, order, turns."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshinfer.core.request import FinishReason, Sampling
from meshinfer.core.step import Opening, Sampled, Step
from meshinfer.errors import InvalidRequest, Overloaded
from meshinfer.serve.scheduler import Scheduler, SchedulerLimits
from meshinfer.serve.sequence import Sequence, SequenceState
from meshinfer.serve.step_choice import StepLimits
from meshinfer.serve.step_cost import StepCost
from tests.serve.bookkeeping import STOP, BookkeepingStage, Disturbed, Drive, alone, sequence

REQUESTS = st.lists(
    st.tuples(st.lists(st.integers(0, 996), min_size=1, max_size=90), st.integers(1, 25)),
    min_size=1,
    max_size=12,
)


def scheduler_of(
    cache_tokens: int = 4096,
    stages: int = 1,
    block_size: int = 32,
    step_tokens: int = 256,
    **limits: int,
) -> Scheduler:
    bounds = SchedulerLimits(cache_tokens, block_size, StepLimits(step_tokens), **limits)
    return Scheduler(bounds, StepCost(stages))


def linear(stages: int, fixed_s: float, token_s: float) -> StepCost:
    curve = [(tokens, fixed_s + token_s * tokens) for tokens in (1, 2, 4, 8, 16, 32, 64, 256)]
    return StepCost(stages, [curve] * stages)


@settings(max_examples=150, deadline=None)
@given(requests=REQUESTS, stages=st.integers(1, 5), blocks=st.integers(15, 60))
def test_every_answer_equals_its_lone_run(
    requests: list[tuple[list[int], int]], stages: int, blocks: int
) -> None:
    """Whatever the company, the depth and the shortage of cache; nobody starves."""
    scheduler = scheduler_of(blocks * 8, stages, 8, step_tokens=24)
    drive = Drive(scheduler, BookkeepingStage(blocks * 8, 8))
    sequences = [sequence(prompt, limit) for prompt, limit in requests]
    scheduler.admit(*sequences)
    drive.run()
    for one, (prompt, limit) in zip(sequences, requests, strict=True):
        assert one.tokens == alone(prompt, limit)
        assert one.finish is FinishReason.LENGTH
        assert one.state is SequenceState.FINISHED
    assert scheduler.running == scheduler.waiting == scheduler.in_flight == 0


@settings(max_examples=200, deadline=None)
@given(
    asked=st.lists(
        st.tuples(st.lists(st.sampled_from([0, 1, 2]), max_size=3), st.integers(1, 12)),
        min_size=1,
        max_size=10,
    ),
    stages=st.integers(1, 3),
    blocks=st.integers(24, 50),
    losses=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=12),
    leave=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 40)), max_size=4),
)
def test_shared_beginnings_losses_and_leavers_change_no_answer(
    asked: list[tuple[list[int], int]],
    stages: int,
    blocks: int,
    losses: list[tuple[int, int]],
    leave: list[tuple[int, int]],
) -> None:
    """Prompts begin alike, the stage loses caches at random, clients go at random (C16, N10)."""
    scheduler = scheduler_of(blocks * 8, stages, 8, step_tokens=24)
    stage = BookkeepingStage(blocks * 8, 8)
    disturbed = Disturbed(scheduler, stage, asked, losses, leave)
    Drive(scheduler, stage).run(disturbed.interfere, least=70)
    disturbed.check()


def test_a_cancelled_sequence_is_released_even_when_nothing_else_runs() -> None:
    scheduler, stage = scheduler_of(), BookkeepingStage(4096, 32)
    drive, one = Drive(scheduler, stage), sequence([1, 2, 3], 50)
    scheduler.admit(one)
    drive.send()
    drive.take()
    scheduler.end(one)
    drive.send()
    assert drive.steps[-1].rows == ()
    assert drive.steps[-1].released == (one.key,)
    assert stage.tokens == {}


def test_who_leaves_the_queue_never_reaches_a_stage() -> None:
    """A11."""
    scheduler = scheduler_of(cache_tokens=64, block_size=32)
    drive = Drive(scheduler, BookkeepingStage(64, 32))
    sequences = [sequence([index] * 40, 5) for index in range(1, 6)]
    scheduler.admit(*sequences)
    drive.send()
    for one in sequences[2:]:
        scheduler.end(one)
    assert scheduler.waiting == 1
    drive.run()
    keys = {row.sequence for step in drive.steps for row in step.rows}
    assert keys == {one.key for one in sequences[:2]}


def test_as_many_steps_fly_as_there_are_stages() -> None:
    scheduler = scheduler_of(stages=3)
    drive = Drive(scheduler, BookkeepingStage(4096, 32))
    scheduler.admit(*(sequence([index, 2, 3], 50) for index in range(6)))
    for _ in range(12):
        drive.send()
        drive.take()
    drive.send()
    assert [len(step.rows) for step, _ in drive.flying] == [2, 2, 2]


def test_long_hops_are_filled_with_more_steps_than_stages() -> None:
    cost = linear(2, fixed_s=0.01, token_s=0.02)
    assert cost.groups(8) == 2
    for _ in range(64):
        cost.observe(4, [0.09, 0.09], hops_s=0.3)
    assert cost.groups(8) >= 6


def test_prompt_chunks_fill_the_pipeline_and_do_not_wait() -> None:
    scheduler = Scheduler(SchedulerLimits(4096, 32), linear(2, 0.001, 0.001))
    scheduler.admit(sequence(list(range(512)), 5))
    steps = [scheduler.next_step() for _ in range(4)]
    rows = [step.rows[0] for step in steps if step]
    assert len(rows) == 3
    assert rows[0].count <= 128
    assert [row.position for row in rows] == [rows[0].count * index for index in range(3)]
    assert [row.logits for row in rows] == [0, 0, 0]


def test_a_long_prompt_stretches_the_steps_of_others_by_two_at_most() -> None:
    cost = linear(1, 0.04, 0.004)
    scheduler = Scheduler(SchedulerLimits(8192, 32), cost)
    drive = Drive(scheduler, BookkeepingStage(8192, 32))
    quick = [sequence([index], 200) for index in range(4)]
    scheduler.admit(*quick)
    drive.send()
    drive.take()
    scheduler.admit(sequence(list(range(4000)), 1))
    alone_s = cost.slowest(4)
    assert alone_s is not None
    for _ in range(100):
        drive.send()
        step, _ = drive.flying[0]
        drive.take()
        assert {one.key for one in quick} <= {row.sequence for row in step.rows}
        seconds = cost.slowest(len(step.tokens))
        assert seconds is not None
        assert len(step.tokens) > 4
        assert seconds <= 2.01 * alone_s


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    scheduler = scheduler_of(cache_tokens=8192, step_tokens=64)
    drive = Drive(scheduler, BookkeepingStage(8192, 32))
    long, short = sequence([1] * 4000, 3), sequence([2] * 30, 3)
    scheduler.admit(long)
    drive.send()
    scheduler.admit(short)
    for _ in range(4):
        drive.take()
        drive.send()
    assert short.drawn >= 1
    assert long.pending > 3000


def test_one_prompt_in_three_is_not_held_up_much() -> None:
    """A28: title and tags are asked for together with the chat."""

    def first_token(company: int) -> int:
        scheduler = scheduler_of(cache_tokens=8192, step_tokens=64)
        drive = Drive(scheduler, BookkeepingStage(8192, 32))
        chat = sequence([1] * 500, 3)
        scheduler.admit(chat)
        scheduler.admit(*(sequence([2 + index] * 400, 3) for index in range(company)))
        while not chat.drawn:
            drive.send()
            drive.take()
        return len(drive.steps)

    assert first_token(2) <= 1.5 * first_token(0)


def test_users_take_turns() -> None:
    scheduler = scheduler_of(cache_tokens=64, block_size=32)
    drive = Drive(scheduler, BookkeepingStage(64, 32))
    many = [sequence([index] * 30, 20, user="many") for index in range(1, 6)]
    scheduler.admit(*many)
    drive.send()
    one = sequence([9] * 30, 20, user="one")
    scheduler.admit(one)
    order: list[int] = []
    drive.run(lambda turn: order.extend(row.sequence for row in drive.steps[-1].rows))
    assert order.index(one.key) < order.index(many[3].key)


def test_lower_priorities_go_first_and_nobody_is_passed_for_ever() -> None:
    scheduler = scheduler_of(cache_tokens=32, block_size=32)
    drive = Drive(scheduler, BookkeepingStage(32, 32))
    idle = sequence([1] * 20, 1)
    idle.priority = 5
    keen = [sequence([2 + index] * 20, 1) for index in range(200)]
    scheduler.admit(idle, *keen[:1])
    following = itertools.count(1)

    def feed(turn: int) -> None:
        if turn < 190:
            scheduler.admit(keen[next(following)])

    drive.run(feed)
    order = [row.sequence for step in drive.steps for row in step.rows]
    assert order[0] == keen[0].key
    assert 60 < order.index(idle.key) < 70


def test_choices_of_one_request_compute_its_prompt_once() -> None:
    scheduler = scheduler_of(stages=2)
    stage = BookkeepingStage(4096, 32)
    prompt = list(range(100))
    choices = [sequence(prompt, 5) for _ in range(4)]
    scheduler.admit(*choices)
    Drive(scheduler, stage).run()
    assert stage.computed == 100 + 3 + 4 * 4
    assert [one.cached for one in choices] == [0, 99, 99, 99]
    assert all(one.tokens == alone(prompt, 5) for one in choices)


def test_a_conversation_resumes_from_its_cache() -> None:
    """M11."""
    scheduler, stage = scheduler_of(), BookkeepingStage(4096, 32)
    first = sequence(list(range(300)), 10)
    scheduler.admit(first)
    Drive(scheduler, stage).run()
    computed = stage.computed
    second = sequence(first.tokens + [5, 6, 7], 4)
    scheduler.admit(second)
    Drive(scheduler, stage).run()
    assert second.cached == 309
    assert stage.computed - computed == 4 + 3
    assert second.tokens == alone(first.tokens + [5, 6, 7], 4)


def test_kept_prefixes_leave_when_their_room_is_needed() -> None:
    scheduler = scheduler_of(cache_tokens=256)
    stage = BookkeepingStage(256, 32)
    drive = Drive(scheduler, stage)
    for index in range(10):
        one = sequence([index] * 100, 20)
        scheduler.admit(one)
        drive.run()
        assert one.tokens == alone([index] * 100, 20)
    assert scheduler.cache_used == 0
    assert scheduler.cache_kept > 0.8
    assert len(stage.tokens) == 2


def test_a_prompt_longer_than_what_its_source_leaves_free_starts_nevertheless() -> None:
    scheduler = scheduler_of(cache_tokens=256)
    drive = Drive(scheduler, BookkeepingStage(256, 32))
    first = sequence(list(range(200)), 10)
    scheduler.admit(first)
    drive.run()
    second = sequence(list(range(40)) + [3] * 190, 10)
    scheduler.admit(second)
    drive.run()
    assert second.tokens == alone(list(range(40)) + [3] * 190, 10)


def test_a_sequence_that_gives_up_its_cache_is_told_anew() -> None:
    sampling = Sampling(bias=((3, 1.0),))
    scheduler = scheduler_of(cache_tokens=128, block_size=32)
    drive = Drive(scheduler, BookkeepingStage(128, 32))
    first = sequence([1] * 30, 60)
    second = sequence([2] * 30, 60, sampling)
    scheduler.admit(first, second)
    drive.run()
    names = [one.sequence for step in drive.steps for one in step.openings]
    assert len(set(names)) == len(names) > 1
    openings = [one for step in drive.steps for one in step.openings]
    assert openings == [Opening(name, 30, sampling.bias) for name in names]


def test_what_a_new_leader_inherits_is_used() -> None:
    old = scheduler_of()
    stage = BookkeepingStage(4096, 32)
    first = sequence(list(range(300)), 10)
    old.admit(first)
    Drive(old, stage).run()
    new = scheduler_of()
    new.inherit(list(stage.tokens.items()))
    computed = stage.computed
    second = sequence(first.tokens + [5], 4)
    new.admit(second)
    Drive(new, stage).run()
    assert stage.computed - computed == 4 + 1


@pytest.mark.parametrize("limits", [{"waiting": 2}, {"waiting_tokens": 2}])
def test_too_many_waiting_is_said(limits: dict[str, int]) -> None:
    scheduler = scheduler_of(**limits)
    scheduler.admit(*(sequence([1], 1) for _ in range(2)))
    with pytest.raises(Overloaded, match="2 requests wait"):
        scheduler.admit(sequence([1], 1))
    assert scheduler.waiting == 2


def test_a_failed_step_names_its_living_sequences_and_the_rest_go_on() -> None:
    scheduler = scheduler_of(stages=2, step_tokens=1)
    first, second = (sequence([token], 3) for token in (1, 2))
    scheduler.admit(first, second)
    steps = [scheduler.next_step(), scheduler.next_step()]
    assert steps[0] is not None
    failed = scheduler.fail(steps[0].number)
    assert failed == (first,)
    scheduler.end(first)
    assert steps[1] is not None
    (advance,) = scheduler.commit(steps[1].number, [Sampled(4)])
    assert advance.sequence is second
    following = scheduler.next_step()
    assert following is not None
    assert following.released == (first.key,)


def test_a_refused_step_is_repeated_but_for_what_is_lost() -> None:
    scheduler, stage = scheduler_of(stages=2), BookkeepingStage(4096, 32)
    drive = Drive(scheduler, stage)
    kept, lost = sequence([1] * 20, 30), sequence([2] * 20, 30)
    scheduler.admit(kept, lost)
    for _ in range(6):
        drive.send()
        drive.take()
    names = kept.key, lost.key
    stage.forget(lost.key)
    drive.run()
    assert kept.key == names[0]
    assert lost.key not in (0, names[1])
    assert kept.tokens == alone([1] * 20, 30)
    assert lost.tokens == alone([2] * 20, 30)


def test_a_stop_token_ends_the_sequence() -> None:
    one = Sequence([5], 1, Sampling(), 10, (STOP,))
    one.append(7)
    assert one.finish is None
    one.append(STOP)
    assert one.finish is FinishReason.STOP


def test_a_step_says_nothing_of_sequences_that_are_plain() -> None:
    scheduler = scheduler_of()
    scheduler.admit(sequence([1, 2], 3))
    step = scheduler.next_step()
    assert isinstance(step, Step)
    assert step.openings == ()


class Cliff:
    """A grammar that allows anything, ends after `length` tokens, or gives up at `edge`."""

    def __init__(self, length: int = 99, edge: int = 99, at_mask: bool = False) -> None:
        self.length, self.edge, self.at_mask, self.taken = length, edge, at_mask, 0

    def mask(self) -> bytes:
        if self.at_mask and self.taken == self.edge:
            raise InvalidRequest("Nothing fits.")
        return b"\xff" * 4

    def accept(self, token: int) -> None:
        if not self.at_mask and self.taken == self.edge:
            raise InvalidRequest("Too hard.")
        self.taken += 1

    @property
    def is_complete(self) -> bool:
        return self.taken >= self.length


@pytest.mark.parametrize("at_mask", [True, False])
def test_a_grammar_that_gives_up_ends_its_own_answer_only(at_mask: bool) -> None:
    scheduler, stage = scheduler_of(), BookkeepingStage(4096, 32)
    broken, other = sequence([1, 2], 20), sequence([3, 4], 20)
    broken.constraint = Cliff(edge=3, at_mask=at_mask)
    scheduler.admit(broken, other)
    Drive(scheduler, stage).run()
    ((failed, error),) = scheduler.take_failed()
    assert failed is broken
    assert isinstance(error, InvalidRequest)
    assert other.tokens == alone([3, 4], 20)
    assert broken.key not in stage.tokens


def test_an_answer_ends_where_its_grammar_does() -> None:
    scheduler = scheduler_of()
    one = sequence([1, 2], 20)
    one.constraint = Cliff(length=4)
    scheduler.admit(one)
    drive = Drive(scheduler, BookkeepingStage(4096, 32))
    drive.run()
    assert one.drawn == 4
    assert one.finish is FinishReason.STOP
    assert all(len(row.mask) == 4 for step in drive.steps for row in step.rows if row.logits)
