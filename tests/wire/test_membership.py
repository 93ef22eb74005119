"""Heartbeats and hints on the wire."""

from __future__ import annotations

import pytest

from meshinfer.core.fleet import Address, Capacity
from meshinfer.core.ids import NO_EPOCH, Epoch, NodeId
from meshinfer.errors import ProtocolViolation
from meshinfer.wire import codec, registry
from meshinfer.wire.election import LARGEST_COUNTER
from meshinfer.wire.membership import MOST_PEERS, Goodbye, Heartbeat, KnownPeer, Peers, Superseded

B = NodeId("b" * 52)
CAPACITY = Capacity(1, 1, 1, (), "2026.4.1")
PEER = KnownPeer(B, tuple(Address(f"2001:db8::{n}", 65535) for n in range(8)))


@pytest.mark.parametrize(
    "message",
    [
        Heartbeat(1, 0, Epoch(3, B), NO_EPOCH, 0, CAPACITY, False),
        Superseded(),
        Goodbye("shutdown"),
        Peers(()),
        Peers((PEER,) * MOST_PEERS),
    ],
)
def test_round_trip_within_the_limits(message: object) -> None:
    frame = registry.pack(message)
    assert registry.unpack(frame, registry.welcome("mesh"))[0] == message


@pytest.mark.parametrize(
    "fields",
    [
        (-1, 0, NO_EPOCH, NO_EPOCH, 0),
        (1, -1, NO_EPOCH, NO_EPOCH, 0),
        (1, 0, Epoch(LARGEST_COUNTER + 1, B), NO_EPOCH, 0),
        (1, 0, NO_EPOCH, Epoch(-1, B), 0),
        (1, 0, NO_EPOCH, NO_EPOCH, -1),
    ],
)
def test_impossible_heartbeats_are_refused(fields: tuple[int, int, Epoch, Epoch, int]) -> None:
    with pytest.raises(ValueError, match="."):
        Heartbeat(*fields, CAPACITY, False)


def test_a_heartbeat_with_an_impossible_number_is_a_violation() -> None:
    good = codec.encode(Heartbeat(1, 0, NO_EPOCH, NO_EPOCH, 0, CAPACITY, False))
    assert good[1] == 1, "the sequence is the first field"
    with pytest.raises(ProtocolViolation):
        codec.decode(Heartbeat, good[:1] + b"\xff" + good[2:])  # -1


def test_too_many_peers_are_refused() -> None:
    with pytest.raises(ValueError, match="peers"):
        Peers((PEER,) * (MOST_PEERS + 1))
