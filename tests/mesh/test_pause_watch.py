"""Late, asleep, or neither (N11)."""

from __future__ import annotations

import pytest

from meshinfer.mesh.pause_watch import Pause, PauseWatch
from meshinfer.mesh.timing import MeshTiming

TIMING = MeshTiming(tick_s=0.1, lag_s=0.25, jump_s=5.0)


@pytest.mark.parametrize(
    ("monotonic_s", "wall_s", "pause"),
    [
        pytest.param(0.1, 0.1, Pause.NONE, id="a tick"),
        pytest.param(0.3, 0.3, Pause.NONE, id="a slow tick"),
        pytest.param(0.4, 0.4, Pause.LAGGED, id="a late tick"),
        pytest.param(4.9, 4.9, Pause.LAGGED, id="a very late tick"),
        pytest.param(90.0, 90.0, Pause.SLEPT, id="stopped: both clocks went on"),
        pytest.param(0.1, 1800.0, Pause.SLEPT, id="lid closed: only the wall clock went on"),
        pytest.param(0.1, -3600.0, Pause.SLEPT, id="clock set back"),
        pytest.param(0.1, 1.1, Pause.NONE, id="clock corrected by a second"),
    ],
)
def test_what_happened(monotonic_s: float, wall_s: float, pause: Pause) -> None:
    watch = PauseWatch(TIMING, 1000.0, 1e9)
    assert watch.notice(1000.0 + monotonic_s, 1e9 + wall_s) is pause


def test_each_pause_is_noticed_once() -> None:
    watch = PauseWatch(TIMING, 0.0, 0.0)
    assert watch.notice(60.0, 60.0) is Pause.SLEPT
    assert watch.notice(60.0, 60.0) is Pause.NONE
    assert watch.notice(60.1, 60.1) is Pause.NONE


def test_a_clock_that_is_slewed_is_no_jump() -> None:
    watch = PauseWatch(TIMING, 0.0, 0.0)
    for tick in range(1, 1000):
        assert watch.notice(0.1 * tick, 0.2 * tick) is Pause.NONE
