"""Frames: literal bytes both ways, and every way in which they can be wrong."""

from __future__ import annotations

import struct
import zlib

import pytest

from meshinfer.errors import ProtocolViolation
from meshinfer.wire import frame
from meshinfer.wire.frame import Limits

LIMITS = {7: Limits(header=8, payload=16)}
# magic, version 1, pad, number 7, pad, header 3, payload 2, CRC-32 of b"abcXY"
LITERAL = bytes.fromhex("4d49 01 00 0700 0000 03000000 02000000") + struct.pack(
    "<I", zlib.crc32(b"abcXY")
)


def test_join_gives_the_documented_bytes() -> None:
    assert bytes(frame.join(7, b"abc", b"XY")) == LITERAL + b"abcXY"


def test_split_takes_the_documented_bytes() -> None:
    parts = frame.split(LITERAL + b"abcXY", LIMITS)
    assert (parts.number, bytes(parts.header), bytes(parts.payload)) == (7, b"abc", b"XY")


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_is_a_payload(kind: type) -> None:
    assert bytes(frame.join(7, b"", kind(b"XY"))[-2:]) == b"XY"


def test_a_payload_of_wider_items_counts_in_bytes() -> None:
    wide = memoryview(bytearray(16)).cast("I")
    assert len(frame.split(frame.join(7, b"", wide), LIMITS).payload) == 16


def test_the_payload_is_a_view_and_not_a_copy() -> None:
    whole = frame.join(7, b"abc", b"XY")
    payload = frame.split(whole, LIMITS).payload
    assert payload.obj is whole


@pytest.mark.parametrize("length", range(len(LITERAL) + 5))
def test_cut_short_at_every_offset(length: int) -> None:
    with pytest.raises(ProtocolViolation):
        frame.split((LITERAL + b"abcXY")[:length], LIMITS)


@pytest.mark.parametrize("offset", range(len(LITERAL) + 5))
def test_any_flipped_bit_is_noticed(offset: int) -> None:
    data = bytearray(LITERAL + b"abcXY")
    data[offset] ^= 0x01
    with pytest.raises(ProtocolViolation):
        frame.split(data, LIMITS)


def test_a_tail_is_refused() -> None:
    with pytest.raises(ProtocolViolation, match="cut short or too long"):
        frame.split(LITERAL + b"abcXYZ", LIMITS)


def test_another_frame_version_is_named_with_ours() -> None:
    data = bytearray(LITERAL + b"abcXY")
    data[2] = 9
    with pytest.raises(ProtocolViolation, match="frame version 9, this PC speaks 1"):
        frame.split(data, LIMITS)


def test_a_number_that_is_not_welcome() -> None:
    with pytest.raises(ProtocolViolation, match="message 7 is not expected here"):
        frame.split(LITERAL + b"abcXY", {8: LIMITS[7]})


@pytest.mark.parametrize(("header", "payload"), [(9, 0), (0, 17), (2**32 - 1, 0), (0, 2**32 - 1)])
def test_announced_lengths_over_the_limit_are_refused_before_the_bytes_are_there(
    header: int, payload: int
) -> None:
    preamble = frame.PREAMBLE.pack(b"MI", 1, 0, 7, 0, header, payload, 0)
    with pytest.raises(ProtocolViolation, match="announces"):
        frame.split(preamble, LIMITS)


def test_lengths_at_the_limit_pass() -> None:
    parts = frame.split(frame.join(7, b"h" * 8, b"p" * 16), LIMITS)
    assert (len(parts.header), len(parts.payload)) == (8, 16)


@pytest.mark.parametrize(
    "stranger",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x80\x04\x95\x1a\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94.",
        b"\x93NUMPY\x01\x00v\x00{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
        b"!!python/object/apply:os.system ['true']",
        bytes(64),
        b"",
    ],
    ids=["http", "pickle", "npy-object", "yaml-tag", "zeros", "nothing"],
)
def test_what_is_no_frame_is_refused(stranger: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        frame.split(stranger, LIMITS)


def test_head_and_payload_are_the_same_bytes_as_join() -> None:
    assert frame.head(7, b"abc", b"XY") == LITERAL + b"abc"


def test_the_preamble_alone_tells_number_and_length() -> None:
    assert frame.number(LITERAL) == 7
    assert frame.length(LITERAL, LIMITS) == len(LITERAL) + 5


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (b"XX" + LITERAL[2:], "not a meshinfer frame"),
        (LITERAL[:2] + b"\x02" + LITERAL[3:], "frame version 2"),
        (LITERAL[:4] + b"\x08" + LITERAL[5:], "not expected here"),
        (LITERAL[:8] + b"\x09" + LITERAL[9:], "announces 9"),
        (LITERAL[:12] + b"\x11" + LITERAL[13:], "announces 3 . 17"),
        (LITERAL[:19], "shorter than its preamble"),
    ],
)
def test_nothing_is_allocated_for_a_preamble_that_is_not_in_order(change: bytes, why: str) -> None:
    with pytest.raises(ProtocolViolation, match=why):
        frame.length(change, LIMITS)
