"""Warming up leaves nothing behind and runs every size that the scheduler makes."""

from __future__ import annotations

import pytest

from meshinfer.core.model import UnitRange
from meshinfer.engine.toy import ToyModel, ToyStage
from meshinfer.engine.warmup import SIZES, warm_up
from meshinfer.serve.step_choice import StepLimits

TOY = ToyModel(layers=2, hidden_size=8)


@pytest.mark.parametrize("units", [UnitRange(0, 6), UnitRange(0, 3), UnitRange(3, 6)], ids=str)
@pytest.mark.parametrize("cache_tokens", [32, 512])
def test_the_cache_is_empty_afterwards(units: UnitRange, cache_tokens: int) -> None:
    stage = ToyStage(units, TOY, cache_tokens)
    warm_up(stage)
    assert stage.cached(2**32 - 3) == 0


def test_the_largest_chunk_is_among_the_sizes() -> None:
    assert max(SIZES) == StepLimits().step_tokens
