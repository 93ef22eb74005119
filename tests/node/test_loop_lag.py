"""A held event loop is noticed and said once."""

from __future__ import annotations

import logging

import pytest

from meshinfer.node.loop_lag import WINDOW, LoopLag


def test_the_worst_of_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    lag = LoopLag(lambda: 0.0)
    assert lag.worst_s == 0.0
    with caplog.at_level(logging.WARNING):
        for late in (-0.001, 0.01, 0.5, 0.3):
            lag.note(late)
    assert lag.worst_s == 0.5
    assert [record.getMessage() for record in caplog.records] == [
        "the event loop was held for 500 ms"
    ]
    for _ in range(WINDOW):
        lag.note(0.002)
    assert lag.worst_s == 0.002
