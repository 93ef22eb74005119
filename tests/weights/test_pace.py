from __future__ import annotations

from meshinfer.weights.pace import AHEAD_S, LEAST, Pace


def rate(pace: Pace, interval_s: float, pieces: int, start: float = 0.0) -> float:
    """Pieces that come at such intervals, always more in flight."""
    now = start
    pace.asked(now)
    for _ in range(pieces):
        now += interval_s
        pace.arrived(now, left=1)
    return now


def test_it_begins_with_the_least() -> None:
    assert Pace(8).window == LEAST
    assert Pace(1).window == 1


def test_a_fast_link_gets_the_most() -> None:
    pace = Pace(8)
    rate(pace, 0.003, 5)
    assert pace.window == 8


def test_a_slow_link_gets_the_least() -> None:
    """A fifth of 20 MB/s: a piece each 0.26 s."""
    pace = Pace(8)
    rate(pace, 0.26, 10)
    assert pace.window == LEAST


def test_in_between_it_is_a_quarter_of_a_second() -> None:
    pace = Pace(8)
    rate(pace, AHEAD_S / 4.5, 30)
    assert pace.window == 5


def test_it_follows_a_link_that_slows_down_and_recovers() -> None:
    pace = Pace(8)
    now = rate(pace, 0.003, 10)
    now = rate(pace, 0.3, 10, now)
    assert pace.window == LEAST
    rate(pace, 0.003, 20, now)
    assert pace.window == 8


def test_time_without_anything_in_flight_does_not_count() -> None:
    pace = Pace(8)
    now = rate(pace, 0.003, 10)
    pace.arrived(now + 0.003, left=0)
    pace.asked(now + 60.0)
    pace.arrived(now + 60.003, left=0)
    assert pace.window == 8
    pace.asked(now + 70.0)
    pace.cut()
    pace.asked(now + 99.0)
    pace.arrived(now + 99.003, left=0)
    assert pace.window == 8
