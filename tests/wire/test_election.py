"""Election messages on the wire."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from meshinfer.core.ids import Epoch, NodeId
from meshinfer.errors import ProtocolViolation
from meshinfer.wire import codec, registry
from meshinfer.wire.election import LARGEST_COUNTER, Campaign, Deny, Grant, Renew, Resign

B = NodeId("b" * 52)
MAKERS: list[Callable[[Epoch], object]] = [
    Campaign,
    Resign,
    lambda epoch: Renew(epoch, 7),
    lambda epoch: Grant(epoch, 7),
    lambda epoch: Deny(epoch, Epoch(1, B), True),
    lambda epoch: Deny(Epoch(1, B), epoch, False),
]


@pytest.mark.parametrize("counter", [0, 1, LARGEST_COUNTER])
@pytest.mark.parametrize("make", MAKERS)
def test_round_trip(make: Callable[[Epoch], object], counter: int) -> None:
    message = make(Epoch(counter, B))
    frame = registry.pack(message)
    assert registry.unpack(frame, registry.welcome("mesh"))[0] == message


@pytest.mark.parametrize("counter", [-1, LARGEST_COUNTER + 1, 2**64 - 1])
@pytest.mark.parametrize("make", MAKERS)
def test_counters_that_no_fleet_reaches_are_refused(
    make: Callable[[Epoch], object], counter: int
) -> None:
    with pytest.raises(ValueError, match="epoch counter"):
        make(Epoch(counter, B))


def test_such_a_counter_in_bytes_is_a_violation() -> None:
    raw = bytearray(codec.encode(Campaign(Epoch(1, B))))
    assert raw[2] == 1, "the counter of the epoch"
    raw[2] = 0xFF  # -1
    with pytest.raises(ProtocolViolation):
        codec.decode(Campaign, bytes(raw))


@pytest.mark.parametrize("make", MAKERS)
def test_every_cut_is_a_violation(make: Callable[[Epoch], object]) -> None:
    frame = registry.pack(make(Epoch(3, B)))
    for length in range(len(frame)):
        with pytest.raises(ProtocolViolation):
            registry.unpack(frame[:length], registry.welcome("mesh"))
