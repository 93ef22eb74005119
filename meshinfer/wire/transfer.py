"""The transfer conversation: a PC asks for pieces by digest, a PC that holds them answers.

puller              server
TransferHello ->          what I speak
PiecesWanted  ->          the pieces that I lack; the place in the list is a piece's number here
             <-  PiecesHeld (at once, whenever it changes, and every few seconds: I still live)
PieceRequest  ->
             <-  PieceData or PieceMissing
PieceWrong    ->          those bytes were not the piece: look at your own copy

A piece is named by its SHA-256 and by nothing else: no file name, path or offset ever comes from
the other side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshinfer.core.ids import Digest
from meshinfer.errors import ProtocolViolation

TRANSFER_VERSION = 2
DIGEST_BYTES = 32
MOST_PIECES = 65_536
"""Of one PiecesWanted: what a manifest may have."""


@dataclass(frozen=True, slots=True)
class TransferHello:
    """First message on a transfer link."""

    version: int


@dataclass(frozen=True, slots=True)
class PieceRequest:
    digest: Digest


@dataclass(frozen=True, slots=True)
class PieceData:
    """The piece is the payload; the receiver hashes it before it uses it."""

    digest: Digest


@dataclass(frozen=True, slots=True)
class PieceMissing:
    digest: Digest
    why: str


@dataclass(frozen=True, slots=True)
class PiecesWanted:
    """Second message on a transfer link, once. The payload is `pack_digests`; `stage` is for the
    other side's log: a PC that never heard of it may hold pieces of it all the same."""

    stage: Digest


@dataclass(frozen=True, slots=True)
class PiecesHeld:
    """What the sender can give now and what it has asked others for: `pack_bitmaps`, whole each
    time. `growing`: it is getting pieces of this stage itself, so more may come."""

    growing: bool


@dataclass(frozen=True, slots=True)
class PieceWrong:
    """The sender of PieceData looks at its copy before it gives it to anybody else."""

    digest: Digest


def pack_digests(digests: Sequence[Digest]) -> bytes:
    """The payload of PiecesWanted: 32 bytes a piece."""
    return bytes.fromhex("".join(digests))


def unpack_digests(payload: memoryview) -> tuple[Digest, ...]:
    """Raises ProtocolViolation: not whole digests, or one of them twice."""
    if payload.nbytes % DIGEST_BYTES:
        raise ProtocolViolation(f"{payload.nbytes} bytes are not whole digests")
    text = payload.hex()
    step = 2 * DIGEST_BYTES
    found = tuple(Digest(text[start : start + step]) for start in range(0, len(text), step))
    if len(set(found)) != len(found):
        raise ProtocolViolation("a piece is wanted twice")
    return found


def pack_bitmaps(count: int, held: int, coming: int) -> bytes:
    """The payload of PiecesHeld for `count` wanted pieces: bit n (lowest first) is piece n."""
    size = _bitmap_bytes(count)
    return held.to_bytes(size, "little") + coming.to_bytes(size, "little")


def unpack_bitmaps(count: int, payload: memoryview) -> tuple[int, int]:
    """(held, coming). Raises ProtocolViolation unless they are for just `count` pieces."""
    size = _bitmap_bytes(count)
    if payload.nbytes != 2 * size:
        raise ProtocolViolation(f"bitmaps of {payload.nbytes} bytes for {count} pieces")
    held = int.from_bytes(payload[:size], "little")
    coming = int.from_bytes(payload[size:], "little")
    if (held | coming) >> count:
        raise ProtocolViolation(f"a bitmap has pieces beyond the {count} that are wanted")
    return held, coming


def _bitmap_bytes(count: int) -> int:
    return -(-count // 8)
