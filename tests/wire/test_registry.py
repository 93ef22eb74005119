"""Every registered message travels, and only where it is welcome."""

from __future__ import annotations

import re
import types
import typing
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from meshinfer.core.ids import NO_EPOCH, Digest, Epoch, PlanId
from meshinfer.core.model import UnitRange
from meshinfer.errors import ProtocolViolation
from meshinfer.wire import frame, registry
from meshinfer.wire.membership import Goodbye
from meshinfer.wire.ring import StepFrame
from meshinfer.wire.transfer import PieceData

KINDS = [
    (channel, number, kind)
    for channel, messages in registry.CHANNEL_MESSAGES.items()
    for number, (kind, _) in messages.items()
]
_SMALL = st.integers(0, 9)
_SCALARS: dict[object, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: st.integers(-(2**63), 2**64 - 1),
    float: st.floats(allow_nan=False, allow_infinity=False),
    # Surrogates are no characters: the codec refuses them (tests/wire/test_codec.py).
    str: st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
    bytes: st.binary(max_size=6),
}


def values_of(annotation: Any) -> st.SearchStrategy[Any]:
    """Values of an annotation that a message may have."""
    if isinstance(annotation, typing.NewType):
        return values_of(annotation.__supertype__)
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return st.one_of(st.none() if one is type(None) else values_of(one) for one in arguments)
    if typing.get_origin(annotation) is tuple:
        if arguments[-1] is Ellipsis:
            return st.lists(values_of(arguments[0]), max_size=2).map(tuple)
        return st.tuples(*map(values_of, arguments))
    if annotation is UnitRange:
        return st.tuples(st.integers(0, 50), st.integers(1, 50)).map(
            lambda pair: UnitRange(pair[0], pair[0] + pair[1])
        )
    if annotation is Epoch:
        return st.builds(Epoch, st.integers(0, 2**48), values_of(str))
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return st.sampled_from(annotation)
    if is_dataclass(annotation) and isinstance(annotation, type):
        return records_of(annotation)
    return _SCALARS[annotation]


@st.composite
def records_of(draw: st.DrawFn, kind: type) -> Any:
    """A `kind` whose invariants hold: numbers shrink towards small ones until they do."""
    hints = typing.get_type_hints(kind)
    known = {field.name: draw(values_of(hints[field.name])) for field in fields(kind)}
    try:
        return kind(**known)
    except ValueError:  # an invariant in __post_init__: numbers that are small satisfy it
        known |= {name: draw(_SMALL) for name, value in known.items() if type(value) is int}
    try:
        return kind(**known)
    except ValueError:
        reject()


@pytest.mark.parametrize(("channel", "number", "kind"), KINDS, ids=lambda value: str(value))
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_every_message_comes_back_equal(
    channel: str, number: int, kind: type, data: st.DataObject
) -> None:
    message = data.draw(values_of(kind))
    limits = registry.welcome(channel)
    size = min(limits[number].payload, 5)
    packed = registry.pack(message, b"p" * size)
    assert int.from_bytes(packed[4:6], "little") == number
    back, payload = registry.unpack(packed, limits)
    assert back == message
    assert type(back) is kind
    assert bytes(payload) == b"p" * size


@settings(max_examples=300, deadline=None)
@given(channel=st.sampled_from(list(registry.CHANNEL_MESSAGES)), junk=st.binary(max_size=80))
def test_junk_in_a_valid_frame_is_refused_or_understood(channel: str, junk: bytes) -> None:
    limits = registry.welcome(channel)
    for number in limits:
        try:
            registry.unpack(frame.join(number, junk), limits)
        except ProtocolViolation:
            continue


def test_a_known_message_has_literal_bytes() -> None:
    packed = registry.pack(Goodbye("bye"))
    assert bytes(packed) == bytes.fromhex(
        "4d49 01 00 0500 0000 05000000 00000000 7007ecfd 91 a3627965"
    )


def test_no_number_and_no_message_is_used_twice() -> None:
    numbers = [number for _, number, _ in KINDS]
    kinds = [kind for _, _, kind in KINDS]
    assert len(set(numbers)) == len(numbers)
    assert len(set(kinds)) == len(kinds)


def test_a_message_of_another_channel_is_not_welcome() -> None:
    for channel, number, _ in KINDS:
        for other in registry.CHANNEL_MESSAGES.keys() - {channel}:
            with pytest.raises(ProtocolViolation, match="not expected here"):
                registry.unpack(frame.join(number, b"\x90"), registry.welcome(other))


def test_a_message_over_its_limit_is_refused_before_it_is_sent() -> None:
    with pytest.raises(ProtocolViolation, match="Goodbye of 4100 . 0 bytes is over its limit"):
        registry.pack(Goodbye("x" * 4096))
    with pytest.raises(ProtocolViolation, match="is over its limit"):
        registry.pack(Goodbye("x"), b"payload where none belongs")
    step = StepFrame(NO_EPOCH, PlanId("p"), 1, 1, 1, 1, (), (), ())
    with pytest.raises(ProtocolViolation, match="is over its limit"):
        registry.pack(step, memoryview(bytearray(registry.RING_PAYLOAD + 1)))


def test_a_message_at_its_limit_travels() -> None:
    piece = PieceData(Digest("0" * 64))
    packed = registry.pack(piece, bytes(1 << 20))
    assert registry.unpack(packed, registry.welcome("transfer"))[0] == piece


def test_a_prefill_of_4000_tokens_of_width_4096_fits_in_f32() -> None:
    assert registry.RING_PAYLOAD >= 4000 * 4096 * 4 + 4000 * 4 + 1024 * 48


def test_the_largest_frame_is_what_a_transport_must_take() -> None:
    limits = registry.welcome("transfer")
    assert registry.largest_frame(limits.values()) == 20 + 4096 + (2 << 20)


def test_the_documentation_lists_every_message_with_its_number() -> None:
    text = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text("utf-8")
    documented = re.findall(r"^\| (\d+) \| (\w+) \| `(\w+)` \|", text, re.MULTILINE)
    registered = [(str(number), channel, kind.__name__) for channel, number, kind in KINDS]
    assert sorted(documented) == sorted(registered)
