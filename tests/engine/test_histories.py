"""A stage knows the tokens of its sequences as a list of lists would."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshinfer.core.request import GREEDY, Sampling
from meshinfer.core.step import Opening, Row, Step
from meshinfer.engine.histories import Histories
from meshinfer.errors import StageFailed

CONTEXT = 400
PENALISED = Sampling(0.0, presence_penalty=0.5)
BIAS = ((3, 1.5),)


def known(*sequences: tuple[int, list[int]]) -> Histories:
    histories = Histories(CONTEXT)
    rows = tuple(Row(sequence, 0, len(tokens), 0) for sequence, tokens in sequences)
    tokens = tuple(token for _, ids in sequences for token in ids)
    openings = tuple(Opening(sequence, 2, BIAS) for sequence, _ in sequences)
    histories.apply(Step(0, rows, tokens, openings=openings))
    return histories


@dataclass
class Model:
    """The plainest that could be right."""

    lists: dict[int, list[int]] = field(default_factory=dict)

    def apply(self, step: Step) -> None:
        for sequence in step.released:
            self.lists.pop(sequence, None)
        before = {sequence: list(tokens) for sequence, tokens in self.lists.items()}
        rest = list(step.tokens)
        for row in step.rows:
            source = row.sequence if row.fork_from is None else row.fork_from
            kept = before.get(source, [])
            moved = [kept[slot] for slot in row.kept]
            kept = kept[: row.position - len(moved)] + moved
            self.lists[row.sequence] = kept + rest[: row.count]
            rest = rest[row.count :]


@st.composite
def steps(draw: st.DrawFn, model: Model, number: int) -> Step:
    present = sorted(model.lists)
    released = tuple(draw(st.sets(st.sampled_from(present), max_size=1)) if present else ())
    present = [one for one in present if one not in released]
    rows = []
    for sequence in sorted(draw(st.sets(st.sampled_from([*present, 100 + number, 200 + number])))):
        source, fork = sequence, None
        if sequence >= 100 and sequence % 100 == number and present and draw(st.booleans()):
            source = fork = draw(st.sampled_from(present))
        length = len(model.lists.get(source, []))
        position = draw(st.one_of(st.just(length), st.integers(0, length)))
        kept: tuple[int, ...] = ()
        if fork is None and position < length:
            slots = st.integers(position, length - 1)
            kept = tuple(sorted(draw(st.frozensets(slots, max_size=3))))
            position += len(kept)
        most = min(CONTEXT - position, draw(st.sampled_from([1, 4, 130])))
        count = draw(st.integers(min(1, most), most))
        rows.append(Row(sequence, position, count, min(count, 1), fork_from=fork, kept=kept))
    total = sum(row.count for row in rows)
    first = draw(st.integers(0, 1000))
    return Step(number, tuple(rows), tuple(range(first, first + total)), released)


@pytest.mark.slow
@settings(max_examples=60)
@given(st.data())
def test_histories_equal_lists(data: st.DataObject) -> None:
    model, histories = Model(), Histories(CONTEXT)
    for number in range(6):
        step = data.draw(steps(model, number))
        model.apply(step)
        histories.apply(step)
        assert {one: histories.tokens(one).tolist() for one in histories.sequences()} == model.lists


def test_draw_rows_see_the_tokens_up_to_their_own() -> None:
    histories = known((1, [5, 6, 7, 8]), (2, [1, 2]))
    masks = b"\1\0\0\0" + b"\2\0\0\0" + b"\3\0\0\0"
    rows = (
        Row(2, 2, 1, 0),  # nothing is drawn
        Row(1, 4, 3, 3, PENALISED, mask=masks),  # two drafts
        Row(3, 0, 2, 1, GREEDY),
    )
    step = Step(1, rows, (9, 10, 11, 12, 20, 21))
    histories.apply(step)
    drawn = histories.draw_rows(step)
    assert [one.position for one in drawn] == [5, 6, 7, 2]
    seen = [one.tokens.tolist() for one in drawn if one.tokens is not None]
    assert seen == [[5, 6, 7, 8, 10], [5, 6, 7, 8, 10, 11], [5, 6, 7, 8, 10, 11, 12]]
    assert [one.mask for one in drawn] == [b"\1\0\0\0", b"\2\0\0\0", b"\3\0\0\0", b""]
    assert [one.bias for one in drawn] == [BIAS, BIAS, BIAS, ()]
    assert [one.prompt_length for one in drawn] == [2, 2, 2, 0]
    assert [one.sampling for one in drawn] == [PENALISED] * 3 + [GREEDY]
    assert drawn[3].tokens is None  # no penalty, no tokens


def test_draw_rows_of_a_tree_see_their_own_path() -> None:
    histories = known((1, [5, 6]), (2, [7]))
    parents = (-1, 0, 0, 2)
    rows = (Row(1, 2, 4, 4, PENALISED, parents=parents), Row(2, 1, 2, 2, parents=(-1, 0)))
    step = Step(1, rows, (10, 11, 12, 13, 20, 21))
    histories.apply(step)
    drawn = histories.draw_rows(step)
    assert [one.position for one in drawn] == [3, 4, 4, 5, 2, 3]
    seen = [one.tokens.tolist() for one in drawn if one.tokens is not None]
    assert seen == [[5, 6, 10], [5, 6, 10, 11], [5, 6, 10, 12], [5, 6, 10, 12, 13]]
    assert histories.tokens(1).tolist() == [5, 6, 10, 11, 12, 13]  # in the order of slots
    accepted = Step(2, (Row(1, 5, 1, 1, kept=(4, 5)),), (14,))
    histories.apply(accepted)
    assert histories.tokens(1).tolist() == [5, 6, 10, 12, 13, 14]


def test_rows_without_penalties_bring_no_tokens() -> None:
    histories = known((1, [5]))
    step = Step(1, (Row(1, 1, 1, 1, Sampling(logprobs=3, bias=((1, 1.0),))),), (6,))
    histories.apply(step)
    (one,) = histories.draw_rows(step)
    assert one.tokens is None
    assert one.bias == BIAS  # of the opening


def test_a_fork_has_an_opening_of_its_own_and_changes_nothing_of_its_source() -> None:
    histories = known((1, [5, 6, 7]))
    rows = (Row(1, 1, 1, 0), Row(2, 3, 1, 1, PENALISED, fork_from=1))
    step = Step(1, rows, (8, 9), openings=(Opening(2, 3),))
    histories.apply(step)
    assert histories.tokens(1).tolist() == [5, 8]
    assert histories.tokens(2).tolist() == [5, 6, 7, 9]  # as the source was before the step
    (one,) = histories.draw_rows(step)
    assert (one.prompt_length, one.bias) == (3, ())


def test_released_sequences_are_forgotten_before_the_step_and_unknown_ones_ignored() -> None:
    histories = known((1, [5]), (2, [6]))
    histories.apply(Step(1, (Row(3, 0, 1, 0),), (7,), released=(1, 99)))
    assert histories.sequences() == (2, 3)
    assert histories.tokens(1).tolist() == []
    with pytest.raises(StageFailed, match="builds on 1 tokens of sequence 2, of which 0"):
        histories.apply(Step(2, (Row(2, 1, 1, 0),), (7,), released=(2,)))


@pytest.mark.parametrize(
    ("rows", "cause"),
    [
        ((Row(1, 4, 1, 1),), "builds on 4 tokens of sequence 1, of which 3"),
        ((Row(9, 1, 1, 1),), "sequence 9, of which 0"),
        ((Row(9, 4, 1, 1, fork_from=1),), "builds on 4 tokens of sequence 1"),
        ((Row(9, 1, 1, 1, fork_from=8),), "sequence 8, of which 0"),
        ((Row(1, 3, CONTEXT - 2, 1),), "would have 401 tokens; the context has 400"),
        ((Row(1, 3, 1, 1), Row(1, 3, 1, 1)), "two rows"),
        ((Row(1, 3, 1, 1, kept=(3,)),), "builds on 4 tokens of sequence 1, of which 3"),
        ((Row(1, 3, 1, 1, kept=(2, 1)),), "malformed"),
        ((Row(1, 3, 2, 2, parents=(-1, 1)),), "malformed"),
        ((Row(1, 3, 1, 2),), "malformed"),
        ((Row(1, -1, 1, 1),), "malformed"),
    ],
)
def test_a_row_that_does_not_fit_is_refused_and_nothing_is_written(
    rows: tuple[Row, ...], cause: str
) -> None:
    histories = known((1, [5, 6, 7]))
    good = Row(2, 0, 1, 0)
    count = sum(max(0, row.count) for row in rows)
    with pytest.raises(StageFailed, match=cause):
        histories.apply(Step(1, (good, *rows), (1, *range(count))))
    assert histories.sequences() == (1,)
    assert histories.tokens(1).tolist() == [5, 6, 7]


def test_a_step_whose_tokens_are_not_those_of_its_rows_is_refused() -> None:
    with pytest.raises(StageFailed, match="came with 1 ids"):
        Histories(CONTEXT).apply(Step(0, (Row(1, 0, 2, 0),), (5,)))


def test_a_mask_that_is_not_one_for_each_logit_row_is_refused() -> None:
    histories = known((1, [5]))
    step = Step(1, (Row(1, 1, 3, 3, mask=b"\1" * 8),), (6, 7, 8))
    histories.apply(step)
    with pytest.raises(StageFailed, match="8 bytes came for 3 rows"):
        histories.draw_rows(step)


def test_cut_and_drop() -> None:
    histories = known((1, [5, 6, 7]), (2, [8]))
    histories.cut(1, 2)
    histories.cut(9, 0)  # unknown, and has no tokens: nothing to do
    assert histories.tokens(1).tolist() == [5, 6]
    for sequence, length in ((1, 3), (1, -1), (9, 1)):
        with pytest.raises(StageFailed, match="cannot be cut"):
            histories.cut(sequence, length)
    histories.drop([1, 9])
    assert histories.sequences() == (2,)


def test_what_is_handed_out_cannot_be_written_to() -> None:
    histories = known((1, [5, 6]))
    for view in (histories.tokens(1), histories.tokens(9)):
        assert not view.flags.writeable
    histories.apply(Step(1, (Row(1, 2, 1, 0),), (7,)))
    assert histories.tokens(1).tolist() == [5, 6, 7]
