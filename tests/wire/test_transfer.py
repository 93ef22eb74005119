"""The transfer conversation: a piece is named by its digest and by nothing else."""

from __future__ import annotations

from dataclasses import fields

from meshinfer.core.ids import Digest
from meshinfer.core.model import PIECE_BYTES
from meshinfer.wire import registry, transfer


def test_a_request_has_literal_bytes() -> None:
    packed = registry.pack(transfer.PieceRequest(Digest("ab" * 32)))
    assert bytes(packed[:16]) == bytes.fromhex("4d49 01 00 3100 0000 43000000 00000000")
    assert bytes(packed[20:]) == b"\x91\xd9\x40" + b"ab" * 32


def test_a_whole_piece_fits_and_the_channel_takes_no_more() -> None:
    limits = registry.welcome("transfer")
    assert limits[50].payload == PIECE_BYTES


def test_no_name_path_or_offset_can_be_asked_for() -> None:
    assert [field.name for field in fields(transfer.PieceRequest)] == ["digest"]
