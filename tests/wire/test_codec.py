"""The codec: exact types only, whatever a peer packs into a header."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NewType

import msgpack
import pytest

from meshinfer.errors import ProtocolViolation
from meshinfer.wire import codec


class Colour(StrEnum):
    RED = "red"


Name = NewType("Name", str)


@dataclass(frozen=True)
class Inner:
    first: int
    second: int

    def __post_init__(self) -> None:
        if self.first > self.second:
            raise ValueError("first is after second")


@dataclass(frozen=True)
class Sample:
    flag: bool
    number: int
    ratio: float
    name: Name
    data: bytes
    colour: Colour
    inner: Inner
    many: tuple[int, ...]
    pair: tuple[str, int]
    maybe: Inner | None


SAMPLE = Sample(True, 5, 0.5, Name("n"), b"d", Colour.RED, Inner(1, 2), (1, 2), ("a", 1), None)
PLAIN = [True, 5, 0.5, "n", b"d", "red", [1, 2], [1, 2], ["a", 1], None]
LITERAL = bytes.fromhex(
    "9a c3 05 cb3fe0000000000000 a16e c40164 a3726564 920102 920102 92a16101 c0"
)


def test_encode_gives_the_literal_bytes() -> None:
    assert codec.encode(SAMPLE) == LITERAL


def test_decode_takes_the_literal_bytes() -> None:
    decoded = codec.decode(Sample, LITERAL)
    assert decoded == SAMPLE
    assert type(decoded.colour) is Colour
    assert type(decoded.many) is tuple


@pytest.mark.parametrize("length", range(len(LITERAL)))
def test_cut_short_at_every_offset(length: int) -> None:
    with pytest.raises(ProtocolViolation):
        codec.decode(Sample, LITERAL[:length])


@pytest.mark.parametrize(
    ("index", "value", "said"),
    [
        (0, 1, "Sample.flag"),
        (1, True, "Sample.number: bool where int"),
        (1, 5.0, "Sample.number"),
        (1, None, "Sample.number"),
        (1, "5", "Sample.number"),
        (2, float("nan"), "not finite"),
        (2, float("inf"), "not finite"),
        (2, True, "Sample.ratio"),
        (3, b"n", "Sample.name"),
        (4, "d", "Sample.data"),
        (5, "blue", "unknown Colour"),
        (5, ["red"], "unknown Colour"),
        (5, {}, "unknown Colour"),
        (6, [1], "does not have 2 fields"),
        (6, [1, 2, 3], "does not have 2 fields"),
        (6, [2, 1], "first is after second"),
        (6, {}, "does not have 2 fields"),
        (6, None, "does not have 2 fields"),
        (7, 5, "no array"),
        (7, [True], "bool where int"),
        (7, [[1]], "list where int"),
        (8, ["a"], "no array of 2"),
        (8, ["a", 1, 1], "no array of 2"),
        (9, 0, "does not have 2 fields"),
    ],
)
def test_a_wrong_value_is_refused_with_its_field(index: int, value: object, said: str) -> None:
    plain = [*PLAIN[:index], value, *PLAIN[index + 1 :]]
    with pytest.raises(ProtocolViolation, match=said):
        codec.decode(Sample, msgpack.packb(plain))


def test_an_integer_is_a_fine_float() -> None:
    decoded = codec.decode(Sample, msgpack.packb([*PLAIN[:2], 2, *PLAIN[3:]]))
    assert type(decoded.ratio) is float


@pytest.mark.parametrize("plain", [PLAIN[:-1], [*PLAIN, 1], [], None, 5, "x", b"x"])
def test_what_is_not_exactly_the_fields(plain: object) -> None:
    with pytest.raises(ProtocolViolation):
        codec.decode(Sample, msgpack.packb(plain))


@pytest.mark.parametrize(
    "bomb",
    [
        b"\xdd\xff\xff\xff\xff",  # an array of 4 billion
        b"\xdf\xff\xff\xff\xff",  # a map of 4 billion
        b"\xdb\xff\xff\xff\xff",  # a string of 4 GB
        b"\xc6\xff\xff\xff\xff",  # bytes of 4 GB
        b"\x91" * 100_000,  # nesting
        b"\xdc\x7f\xff" * 1300,  # nested arrays that each announce 32767
        b"\x81\xa1a\x01",  # a map
        b"\xc7\x01\x05x",  # an extension type
        b"\xd6\xff\x00\x00\x00\x01",  # a timestamp
        LITERAL + b"\x00",  # a tail
        b"\xc1",  # never used
        b"\xa2\xff\xff",  # not UTF-8
    ],
)
def test_bombs_and_foreign_types(bomb: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        codec.decode(Sample, bomb)


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1])
def test_integers_beyond_64_bits_do_not_travel(number: int) -> None:
    with pytest.raises(ProtocolViolation, match="cannot travel"):
        codec.encode(Inner(min(number, 0), max(number, 0)))


def test_half_a_surrogate_pair_is_refused_without_showing_the_text() -> None:
    with pytest.raises(ProtocolViolation) as caught:
        codec.encode(Word("CANARY77 \ud800"))
    assert "CANARY77" not in str(caught.value)
    assert caught.value.__cause__ is None


@dataclass(frozen=True)
class Word:
    text: str


@dataclass(frozen=True)
class Items:
    items: tuple[int, ...]


def test_the_longest_array_travels_and_one_more_does_not() -> None:
    longest = Items((0,) * codec.MAX_ITEMS)
    assert codec.decode(Items, codec.encode(longest)) == longest
    with pytest.raises(ProtocolViolation, match="may travel"):
        codec.encode(Items((0,) * (codec.MAX_ITEMS + 1)))


def test_an_annotation_without_a_rule_is_a_bug_and_said_at_once() -> None:
    @dataclass(frozen=True)
    class Odd:
        table: dict  # type: ignore[type-arg]

    with pytest.raises(TypeError, match="no place in a message"):
        codec.decode(Odd, b"\x91\x80")
