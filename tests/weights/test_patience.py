from __future__ import annotations

from meshinfer.weights.patience import Patience


def test_waits_double_up_to_the_longest() -> None:
    patience = Patience(first_wait_s=0.5, longest_wait_s=8.0)
    assert [patience.wait_s(count) for count in (1, 2, 3, 4, 5, 6, 10_000)] == [
        0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0,
    ]  # fmt: skip
