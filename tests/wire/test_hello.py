"""The greeting: readable across versions outside, strict inside."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshinfer.core.fleet import Address, Capacity, Device
from meshinfer.core.ids import NO_EPOCH, Epoch, NodeId
from meshinfer.errors import ProtocolViolation
from meshinfer.wire import codec, registry
from meshinfer.wire.election import LARGEST_COUNTER
from meshinfer.wire.hello import LONGEST_NAME, MOST_ADDRESSES, MOST_DEVICES, Hello, Introduction

DEVICE = Device("CPU", "a CPU", 1 << 33, ("f32", "bf16"))
TOLD = Introduction(
    name="PC-01 (Küche)",
    incarnation=3,
    link=77,
    epoch=Epoch(5, NodeId("b")),
    lease=NO_EPOCH,
    agent_addresses=(Address("10.0.0.1", 7000),),
    ring_addresses=(),
    capacity=Capacity(1 << 34, 1 << 33, 8, (DEVICE,), "2026.4.1"),
    holds_model=True,
)


def hello(told: Introduction = TOLD) -> Hello:
    return Hello(1, 1, "1.0", "2026.4.1", codec.encode(told))


def test_it_comes_out_as_it_went_in() -> None:
    message, payload = registry.unpack(registry.pack(hello()), registry.welcome("mesh"))
    assert message == hello()
    assert message.introduction() == TOLD
    assert len(payload) == 0


def test_the_outside_never_changes() -> None:
    """Every version has to read these bytes, or it cannot say why it does not fit."""
    fixed = bytes.fromhex("95 01 01 a3312e30 a6323032362e34 c400")
    assert codec.encode(Hello(1, 1, "1.0", "2026.4", b"")) == fixed
    assert codec.decode(Hello, fixed) == Hello(1, 1, "1.0", "2026.4", b"")


def test_the_body_is_not_looked_at_before_it_is_asked_for() -> None:
    strange = Hello(8, 9, "9", "2030.1", b"of another protocol")
    assert codec.decode(Hello, codec.encode(strange)) == strange
    with pytest.raises(ProtocolViolation):
        strange.introduction()


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"incarnation": -1}, id="incarnation"),
        pytest.param({"link": -1}, id="link"),
        pytest.param({"name": "x" * (LONGEST_NAME + 1)}, id="a long name"),
        pytest.param({"name": "pc\x1b[2J"}, id="a name that moves the cursor"),
        pytest.param({"epoch": Epoch(-1, NodeId("b"))}, id="epoch"),
        pytest.param({"lease": Epoch(LARGEST_COUNTER + 1, NodeId("b"))}, id="lease"),
        pytest.param(
            {"agent_addresses": (Address("h", 1),) * (MOST_ADDRESSES + 1)}, id="addresses"
        ),
        pytest.param(
            {"capacity": replace(TOLD.capacity, devices=(DEVICE,) * (MOST_DEVICES + 1))},
            id="devices",
        ),
    ],
)
def test_what_no_pc_would_say_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="."):
        replace(TOLD, **changes)  # type: ignore[arg-type]
    raw = _forged(changes)
    with pytest.raises(ProtocolViolation):
        codec.decode(Introduction, raw)


def _forged(changes: dict[str, object]) -> bytes:
    """The bytes that a PC without these checks would send."""
    forged = object.__new__(Introduction)
    for name in Introduction.__slots__:  # type: ignore[attr-defined]
        object.__setattr__(forged, name, changes.get(name, getattr(TOLD, name)))
    return codec.encode(forged)


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_cut_body_is_a_violation(cut: int) -> None:
    body = codec.encode(TOLD)
    with pytest.raises(ProtocolViolation):
        Hello(1, 1, "1", "2026.4", body[:-cut]).introduction()
