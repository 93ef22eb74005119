"""What a stage keeps of its sequences, and for how long (N10)."""

from __future__ import annotations

import pytest

from meshinfer.core.model import UnitRange
from meshinfer.core.step import Row, Step
from meshinfer.engine.toy import ToyModel, ToyStage
from meshinfer.errors import CacheLost
from meshinfer.link.clock import ManualClock
from meshinfer.serve.stage_memory import StageMemory

TOY = ToyModel(layers=2)
LEASE_S = 100.0


def memory_of(clock: ManualClock) -> tuple[StageMemory, ToyStage]:
    stage = ToyStage(UnitRange(0, 3), TOY, 4096)
    return StageMemory(stage, 512, clock.now, LEASE_S), stage


def row(memory: StageMemory, sequence: int, position: int, *tokens: int) -> None:
    memory.forward(Step(0, (Row(sequence, position, len(tokens), 0),), tokens), None)


def test_a_hundred_lost_ends_leak_nothing() -> None:
    clock = ManualClock()
    memory, stage = memory_of(clock)
    for sequence in range(100):
        row(memory, sequence, 0, 1, 2, 3)
        clock.advance(1.0)
    clock.advance(LEASE_S)
    row(memory, 200, 0, 1)
    assert [stage.cached(one) for one in range(100)] == [0] * 100
    assert [one.sequence for one in memory.census(None)] == [200]


def test_each_frame_renews_the_lease_and_a_late_one_is_refused() -> None:
    clock = ManualClock()
    memory, stage = memory_of(clock)
    row(memory, 1, 0, 5)
    row(memory, 2, 0, 6)
    for position in range(1, 4):
        clock.advance(LEASE_S * 0.9)
        row(memory, 1, position, 7)
    assert stage.cached(1) == 4
    with pytest.raises(CacheLost) as refused:
        row(memory, 2, 1, 7)
    assert refused.value.sequences == (2,)


def test_what_the_leader_names_is_renewed_and_cut_and_all_else_forgotten() -> None:
    clock = ManualClock()
    memory, stage = memory_of(clock)
    for sequence in (1, 2, 3):
        row(memory, sequence, 0, 5, 6, 7)
    clock.advance(LEASE_S * 0.9)
    memory.keep({1: 2, 3: 3, 9: 1})
    clock.advance(LEASE_S * 0.9)
    row(memory, 4, 0, 1)
    assert [stage.cached(one) for one in (1, 2, 3)] == [2, 0, 3]
    assert {one.sequence: one.tokens.tolist() for one in memory.census(None)} == {
        1: [5, 6],
        3: [5, 6, 7],
        4: [1],
    }
