"""The transfer conversation: a piece is named by its digest and by nothing else."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshinfer.core.ids import Digest
from meshinfer.core.model import PIECE_BYTES
from meshinfer.errors import ProtocolViolation
from meshinfer.weights.manifest import MAX_PIECES
from meshinfer.wire import frame, registry, transfer

A, B = Digest("ab" * 32), Digest("cd" * 32)
_HEX = b"\x91\xd9\x40" + b"ab" * 32
LITERALS = [
    (transfer.TransferHello(2), b"", "4d49 01 00 3000 0000 02000000 00000000", b"\x91\x02"),
    (transfer.PieceRequest(A), b"", "4d49 01 00 3100 0000 43000000 00000000", _HEX),
    (transfer.PieceData(A), b"xyz", "4d49 01 00 3200 0000 43000000 03000000", _HEX + b"xyz"),
    (
        transfer.PieceMissing(A, "no"),
        b"",
        "4d49 01 00 3300 0000 46000000 00000000",
        b"\x92\xd9\x40" + b"ab" * 32 + b"\xa2no",
    ),
    (
        transfer.PiecesWanted(A),
        transfer.pack_digests([A, B]),
        "4d49 01 00 3400 0000 43000000 40000000",
        _HEX + b"\xab" * 32 + b"\xcd" * 32,
    ),
    (
        transfer.PiecesHeld(True),
        transfer.pack_bitmaps(10, 0b11_0000_0001, 0b10),
        "4d49 01 00 3500 0000 02000000 04000000",
        b"\x91\xc3" + b"\x01\x03" + b"\x02\x00",
    ),
    (transfer.PieceWrong(A), b"", "4d49 01 00 3600 0000 43000000 00000000", _HEX),
]


@pytest.mark.parametrize(
    ("message", "payload", "preamble", "rest"), LITERALS, ids=lambda v: type(v).__name__
)
def test_every_message_has_literal_bytes(
    message: object, payload: bytes, preamble: str, rest: bytes
) -> None:
    packed = registry.pack(message, payload)
    assert bytes(packed[:16]) == bytes.fromhex(preamble)
    assert bytes(packed[20:]) == rest
    back, left = registry.unpack(packed, registry.welcome("transfer"))
    assert (back, bytes(left)) == (message, payload)


def test_the_table_above_has_every_message_of_the_channel() -> None:
    kinds = {kind for kind, _ in registry.TRANSFER_MESSAGES.values()}
    assert {type(message) for message, *_ in LITERALS} == kinds


def test_a_whole_piece_fits_and_no_more() -> None:
    limits = registry.welcome("transfer")
    assert limits[50].payload == PIECE_BYTES


def test_the_pieces_of_any_manifest_fit_and_no_more() -> None:
    limits = registry.welcome("transfer")
    assert transfer.MOST_PIECES == MAX_PIECES
    assert limits[52].payload == MAX_PIECES * transfer.DIGEST_BYTES
    assert limits[53].payload == len(transfer.pack_bitmaps(MAX_PIECES, 0, 0))


@pytest.mark.parametrize("number", [50, 52, 53])
def test_a_payload_over_its_limit_is_refused_from_its_announced_length(number: int) -> None:
    limits = registry.welcome("transfer")
    preamble = frame.PREAMBLE.pack(
        frame.MAGIC, frame.FRAME_VERSION, 0, number, 0, 2, limits[number].payload + 1, 0
    )
    with pytest.raises(ProtocolViolation, match="announces"):
        frame.split(preamble, limits)


def test_no_name_path_or_offset_can_be_asked_for() -> None:
    assert [field.name for field in fields(transfer.PieceRequest)] == ["digest"]
    assert [field.name for field in fields(transfer.PiecesWanted)] == ["stage"]


@given(st.lists(st.binary(min_size=32, max_size=32).map(bytes.hex), unique=True, max_size=5))
def test_digests_come_back(texts: list[str]) -> None:
    digests = tuple(map(Digest, texts))
    assert transfer.unpack_digests(memoryview(transfer.pack_digests(digests))) == digests


@pytest.mark.parametrize(
    ("payload", "why"), [(b"\0" * 31, "whole digests"), (b"\1" * 64, "wanted twice")]
)
def test_a_list_that_is_none_is_refused(payload: bytes, why: str) -> None:
    with pytest.raises(ProtocolViolation, match=why):
        transfer.unpack_digests(memoryview(payload))


@given(st.integers(0, 40).flatmap(lambda n: st.tuples(st.just(n), *[st.integers(0, 2**n - 1)] * 2)))
def test_bitmaps_come_back(case: tuple[int, int, int]) -> None:
    count, held, coming = case
    packed = memoryview(transfer.pack_bitmaps(count, held, coming))
    assert transfer.unpack_bitmaps(count, packed) == (held, coming)


@pytest.mark.parametrize(
    ("count", "payload", "why"),
    [
        (9, b"\0" * 2, "for 9 pieces"),
        (9, b"\0" * 6, "for 9 pieces"),
        (9, b"\0\2\0\0", "beyond"),
        (9, b"\0\0\0\2", "beyond"),
        (0, b"\1", "for 0 pieces"),
    ],
)
def test_bitmaps_of_another_length_are_refused(count: int, payload: bytes, why: str) -> None:
    with pytest.raises(ProtocolViolation, match=why):
        transfer.unpack_bitmaps(count, memoryview(payload))
