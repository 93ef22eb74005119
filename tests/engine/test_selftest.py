"""C03: devices that compile, run, and are wrong. Each fault is a stage that has it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from meshinfer.core.model import UnitRange
from meshinfer.core.step import Row, Step
from meshinfer.engine.selftest import compare_answer, record_answer, self_test
from meshinfer.engine.stage import StageShape
from meshinfer.engine.toy import ToyModel, ToyStage
from meshinfer.errors import StageFailed

TOY = ToyModel(layers=2)
WHOLE = UnitRange(0, 6)
PARTS = [WHOLE, UnitRange(0, 1), UnitRange(0, 3), UnitRange(2, 3), UnitRange(1, 4), UnitRange(5, 6)]


def toy(units: UnitRange = WHOLE, cache_tokens: int = 256) -> ToyStage:
    return ToyStage(units, TOY, cache_tokens)


class Faulty:
    """A stage whose device spoils outputs."""

    def __init__(self, units: UnitRange = WHOLE, cache_tokens: int = 256) -> None:
        self.stage = toy(units, cache_tokens)
        self.random = np.random.default_rng(5)

    @property
    def shape(self) -> StageShape:
        return self.stage.shape

    def forward(self, step: Step, hidden: NDArray[Any] | None) -> NDArray[Any]:
        return self.spoil(self.stage.forward(step, hidden))

    def spoil(self, output: NDArray[Any]) -> NDArray[Any]:
        raise NotImplementedError

    def cached(self, sequence: int) -> int:
        return self.stage.cached(sequence)

    def refuse_trees(self) -> None:
        self.stage.refuse_trees()

    def close(self) -> None:
        self.stage.close()


class Zeros(Faulty):
    def spoil(self, output: NDArray[Any]) -> NDArray[Any]:
        return np.zeros_like(output)


class OneNotANumber(Faulty):
    def spoil(self, output: NDArray[Any]) -> NDArray[Any]:
        output = output.copy()
        output[len(output) // 2 :, 3] = np.nan
        return output


class Overflow(Faulty):
    def spoil(self, output: NDArray[Any]) -> NDArray[Any]:
        return np.where(output > 1, np.inf, output)


class Constant(Faulty):
    def spoil(self, output: NDArray[Any]) -> NDArray[Any]:
        return np.ones_like(output)


class Noise(Faulty):
    def spoil(self, output: NDArray[Any]) -> NDArray[Any]:
        return output + self.random.normal(0, 1e-4, output.shape).astype(np.float32)


class Narrow(Faulty):
    def spoil(self, output: NDArray[Any]) -> NDArray[Any]:
        return output[:, :-1]


class Skewed(Faulty):
    """Wrong, but always in the same way: only a stored answer shows it."""

    share = 0.3

    def spoil(self, output: NDArray[Any]) -> NDArray[Any]:
        return output + self.share * np.roll(output, 1, axis=1)


class WrongFarBehind(Skewed):
    """Only tokens of the second cache block are wrong, as a fault of the block table makes them."""

    def spoil(self, output: NDArray[Any]) -> NDArray[Any]:
        if len(output) < 40:
            return output
        return np.concatenate([output[:32], super().spoil(output[32:])])


class Rounding(Skewed):
    """What another precision does."""

    share = 0.005


class Forgetful(Faulty):
    """The device loses what was cached in earlier steps."""

    def forward(self, step: Step, hidden: NDArray[Any] | None) -> NDArray[Any]:
        output = self.stage.forward(step, hidden)
        for layer in self.stage._layers:
            if not isinstance(layer, np.ndarray):
                layer.keys[:] = 0
                layer.values[:] = 0
        return output


class Sticky(Faulty):
    """The device ignores a rewind: tokens that were rejected stay in the cache."""

    def forward(self, step: Step, hidden: NDArray[Any] | None) -> NDArray[Any]:
        rows = tuple(
            Row(row.sequence, max(row.position, self.cached(row.sequence)), row.count, row.logits)
            for row in step.rows
        )
        return self.stage.forward(Step(step.number, rows, step.tokens, step.released), hidden)


@pytest.mark.parametrize("units", PARTS, ids=str)
def test_an_honest_stage_passes_and_its_cache_is_empty_again(units: UnitRange) -> None:
    stage = toy(units)
    result = self_test(stage, record_answer(toy(units)))
    assert result.rewind_difference == 0
    assert result.chunk_difference == 0
    assert result.reference_difference == 0
    assert stage._table.free_blocks == stage._table.block_count


def test_a_running_sequence_is_left_alone() -> None:
    stage = toy()
    stage.forward(Step(0, (Row(0, 0, 3, 0),), (1, 2, 3)), None)
    self_test(stage)
    assert stage.cached(0) == 3


def test_a_small_cache_is_enough() -> None:
    assert self_test(toy(cache_tokens=16)).chunk_difference == 0


class WithoutBias(Faulty):
    """Its tokens see all that stand before them, whatever the tree says."""

    def forward(self, step: Step, hidden: NDArray[Any] | None) -> NDArray[Any]:
        rows = tuple(replace(row, parents=()) for row in step.rows)
        return self.stage.forward(replace(step, rows=rows), hidden)


class Unmoved(Faulty):
    """Nothing moves in its cache."""

    def forward(self, step: Step, hidden: NDArray[Any] | None) -> NDArray[Any]:
        rows = tuple(replace(row, kept=()) for row in step.rows)
        return self.stage.forward(replace(step, rows=rows), hidden)


@pytest.mark.parametrize("fault", [WithoutBias, Unmoved])
@pytest.mark.parametrize("units", [WHOLE, UnitRange(1, 4)])
def test_a_device_whose_trees_are_wrong_serves_without_them(
    fault: type[Faulty], units: UnitRange
) -> None:
    stage = fault(units)
    found = self_test(stage)
    assert found.tree_difference is not None
    assert found.tree_difference > 0.05
    assert not stage.shape.trees
    healthy = toy(units)
    assert self_test(healthy).tree_difference == 0
    assert healthy.shape.trees


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Zeros, "zeros"),
        (OneNotANumber, "not finite"),
        (Overflow, "not finite"),
        (Constant, "same for different"),
        (Noise, "after a rewind"),
        (Narrow, "instead of"),
        (Forgetful, "in two chunks"),
        (Sticky, "after a rewind"),
    ],
)
def test_a_faulty_device_is_named_without_a_stored_answer(fault: type[Faulty], said: str) -> None:
    with pytest.raises(StageFailed, match=said):
        self_test(fault())


def test_a_failed_test_leaves_no_sequence_behind() -> None:
    stage = Noise()
    with pytest.raises(StageFailed):
        self_test(stage)
    assert stage.stage._table.sequences == ()


def test_a_device_that_is_always_wrong_fails_against_the_stored_answer() -> None:
    answer = record_answer(toy())
    assert self_test(Skewed()).reference_difference is None
    with pytest.raises(StageFailed, match="stored answer"):
        self_test(Skewed(), answer)


def test_a_device_that_is_wrong_in_its_second_block_fails_against_the_stored_answer() -> None:
    # Looser for chunks, which would show it as well.
    with pytest.raises(StageFailed, match="stored answer"):
        self_test(WrongFarBehind(), record_answer(toy()), chunk_bound=1.0)


def test_another_precision_is_right_enough() -> None:
    difference = self_test(Rounding(), record_answer(toy())).reference_difference
    assert difference is not None
    assert 0 < difference < 0.01


def test_the_answer_of_another_stage_is_refused() -> None:
    with pytest.raises(StageFailed, match="another stage"):
        compare_answer(record_answer(toy()), record_answer(toy(UnitRange(0, 3))))


def test_the_bound_for_chunks_can_be_tightened() -> None:
    with pytest.raises(StageFailed, match="two chunks"):
        self_test(toy(), chunk_bound=-1.0)
