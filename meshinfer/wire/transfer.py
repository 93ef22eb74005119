"""The transfer conversation: a PC asks for pieces by digest, a PC that holds them answers.

A piece is named by its SHA-256 and by nothing else: no file name, path or offset ever comes from
the other side.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshinfer.core.ids import Digest


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
