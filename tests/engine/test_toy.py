"""The toy stage: exact when chained, honest about its cache, indifferent to its company."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshinfer.core.model import UnitKind, UnitRange
from meshinfer.core.step import Row, Step
from meshinfer.engine.toy import ToyModel, ToyStage
from meshinfer.errors import StageFailed

TOY = ToyModel(layers=2, hidden_size=8, vocabulary_size=40, seed=3)
WITH_FRONT = ToyModel(layers=2, hidden_size=8, vocabulary_size=40, seed=3, front=2)
UNITS = 2 * TOY.layers + 2


def stage(
    first: int = 0, end: int = UNITS, cache_tokens: int = 256, toy: ToyModel = TOY
) -> ToyStage:
    return ToyStage(UnitRange(first, end), toy, cache_tokens)


def run(stages: list[ToyStage], step: Step) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    hidden = None
    for one in stages:
        hidden = one.forward(step, hidden)
    assert hidden is not None
    return hidden


def step(*rows: tuple[int, int, list[int]]) -> Step:
    return Step(
        0,
        tuple(Row(sequence, position, len(ids), len(ids)) for sequence, position, ids in rows),
        tuple(token for _, _, ids in rows for token in ids),
    )


@settings(max_examples=30, deadline=None)
@given(
    toy=st.sampled_from([TOY, WITH_FRONT]),
    cuts=st.sets(st.integers(1, UNITS - 1), max_size=UNITS - 1),
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=4),
)
def test_ring_of_toy_stages_equals_one_toy_stage(
    toy: ToyModel, cuts: set[int], lengths: list[int]
) -> None:
    """The project's correctness claim, in its smallest form."""
    bounds = [0, *sorted(cuts), UNITS]
    parts = [stage(first, end, toy=toy) for first, end in zip(bounds, bounds[1:], strict=False)]
    whole = [stage(toy=toy)]
    for position in (0, None):
        rows = [
            (key, 0 if position == 0 else count, [(key + place) % 40 for place in range(count)])
            for key, count in enumerate(lengths)
        ]
        np.testing.assert_array_equal(run(parts, step(*rows)), run(whole, step(*rows)))


def test_a_row_is_independent_of_its_company() -> None:
    alone, crowd = stage(), stage()
    expected = [alone.forward(step((1, place, [7])), None).copy() for place in range(5)]
    for place in range(5):
        got = crowd.forward(step((2, place, [9]), (1, place, [7]), (3, place, [7])), None)
        np.testing.assert_array_equal(got[1:2], expected[place])


def test_logits_depend_on_every_cached_token_and_on_positions() -> None:
    ids = [5, 6, 7, 8, 9, 10]
    last = stage().forward(step((1, 0, ids)), None)[-1].copy()
    for place in range(len(ids)):
        other = list(ids)
        other[place] += 1
        assert (stage().forward(step((1, 0, other)), None)[-1] != last).any()
    assert (stage().forward(step((1, 0, ids[1:])), None)[-1] != last).any()
    swapped = [6, 5, *ids[2:]]
    assert (stage().forward(step((1, 0, swapped)), None)[-1] != last).any()


def test_logits_are_worth_sampling_from() -> None:
    logits = stage().forward(step((1, 0, list(range(30)))), None)
    assert len(set(logits.argmax(axis=1).tolist())) > 10


def test_the_shape_has_the_units_of_a_real_model() -> None:
    shape = TOY.shape()
    kinds = [unit.kind for unit in shape.units]
    layer = [UnitKind.ATTENTION, UnitKind.FEED_FORWARD]
    assert kinds == [UnitKind.EMBEDDING, *layer, *layer, UnitKind.HEAD]
    assert shape.cache_bytes_per_token(UnitRange(0, UNITS)) == 2 * 2 * 8 * TOY.hidden_size
    assert shape.digest != ToyModel(layers=2, hidden_size=8, vocabulary_size=40).shape().digest
    assert shape.units[UNITS - 1].layer == TOY.layers


def test_a_range_outside_the_model_is_refused() -> None:
    with pytest.raises(StageFailed, match=r"\[0,7\)"):
        stage(0, UNITS + 1)


def test_ids_outside_the_vocabulary_are_refused() -> None:
    with pytest.raises(StageFailed, match="vocabulary"):
        stage().forward(step((1, 0, [40])), None)


def test_a_closed_stage_refuses() -> None:
    closed = stage()
    closed.close()
    closed.close()
    with pytest.raises(StageFailed, match="closed"):
        closed.forward(step((1, 0, [1])), None)


def test_what_crosses_narrows_with_every_layer_that_read_its_part() -> None:
    units = WITH_FRONT.shape().units
    assert [unit.crossing_width for unit in units] == [12, 12, 10, 10, 8, 40]
    for first in range(UNITS):
        one = stage(first, first + 1, toy=WITH_FRONT).shape
        assert one.input_width == WITH_FRONT.shape().input_width(UnitRange(first, first + 1))
        assert one.output_width == (0 if one.last else units[first].crossing_width)


def test_what_is_looked_up_in_front_matters() -> None:
    hidden = np.arange(12, dtype=np.float32)[None]
    changed = hidden.copy()
    changed[0, 11] += 1  # the part of the last layer
    outputs = [
        np.array(stage(1, UNITS, toy=WITH_FRONT).forward(step((1, 0, [7])), one))
        for one in (hidden, changed)
    ]
    assert (outputs[0] != outputs[1]).any()
