"""One message on a link: fixed preamble, msgpack header, raw payload. Bytes in, parts out, no I/O.

    offset  size  field (little endian)
    0       2     magic "MI"
    2       1     frame version
    3       1     reserved, zero
    4       2     message number (wire/registry.py)
    6       2     reserved, zero
    8       4     header length in bytes
    12      4     payload length in bytes
    16      4     CRC-32 over header and payload
    20            header, payload

Lengths are compared with the message's own limits before anything is copied or allocated. The
checksum is not a defence against attackers (TLS is): it turns a software fault between two PCs into
a failed request instead of wrong text.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from meshinfer.errors import ProtocolViolation

MAGIC = b"MI"
FRAME_VERSION = 1
PREAMBLE = struct.Struct("<2sBBHHIII")
PREAMBLE_BYTES = PREAMBLE.size


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest header and payload that a message number allows, in bytes."""

    header: int
    payload: int

    @property
    def frame(self) -> int:
        return PREAMBLE_BYTES + self.header + self.payload


@dataclass(frozen=True, slots=True)
class Frame:
    number: int
    header: memoryview
    payload: memoryview


def join(number: int, header: bytes, payload: bytes | bytearray | memoryview = b"") -> bytearray:
    """The bytes of one frame, in a single buffer that is allocated once."""
    body = memoryview(payload).cast("B")
    begin = head(number, header, body)
    frame = bytearray(len(begin) + len(body))
    frame[: len(begin)] = begin
    memoryview(frame)[len(begin) :] = body
    return frame


def head(number: int, header: bytes, payload: bytes | bytearray | memoryview) -> bytes:
    """Preamble and header: what goes before the payload, for a link that sends both as they are."""
    body = memoryview(payload).cast("B")
    checksum = zlib.crc32(body, zlib.crc32(header))
    begin = PREAMBLE.pack(MAGIC, FRAME_VERSION, 0, number, 0, len(header), len(body), checksum)
    return begin + header


def length(preamble: bytes | bytearray | memoryview, limits: dict[int, Limits]) -> int:
    """Bytes of the whole frame that begins so; nothing was allocated for it yet. Raises
    ProtocolViolation as `split` does for what a preamble can show."""
    _, header_length, payload_length, _ = _announced(memoryview(preamble).cast("B"), limits)
    return PREAMBLE_BYTES + header_length + payload_length


def number(preamble: bytes | bytearray | memoryview) -> int:
    """Of the message that begins so."""
    found: int = PREAMBLE.unpack_from(preamble)[3]
    return found


def split(data: bytes | bytearray | memoryview, limits: dict[int, Limits]) -> Frame:
    """The parts of a frame, as views. `limits` holds the numbers that are welcome here.

    Raises ProtocolViolation: not our magic, another frame version, an unknown number, lengths that
    are over the limit or do not add up, a wrong checksum.
    """
    view = memoryview(data).cast("B")
    number, header_length, payload_length, checksum = _announced(view, limits)
    if len(view) != PREAMBLE_BYTES + header_length + payload_length:
        raise ProtocolViolation(f"message {number} is cut short or too long")
    end = PREAMBLE_BYTES + header_length
    if zlib.crc32(view[PREAMBLE_BYTES:]) != checksum:
        raise ProtocolViolation(f"message {number} was damaged on its way: wrong checksum")
    return Frame(number, view[PREAMBLE_BYTES:end], view[end:])


def _announced(view: memoryview, limits: dict[int, Limits]) -> tuple[int, int, int, int]:
    """(number, header length, payload length, checksum) of a preamble that is in order."""
    if len(view) < PREAMBLE_BYTES:
        raise ProtocolViolation(f"a frame of {len(view)} bytes is shorter than its preamble")
    magic, version, pad, number, pad2, header_length, payload_length, checksum = (
        PREAMBLE.unpack_from(view)
    )
    if magic != MAGIC or pad or pad2:
        raise ProtocolViolation("the data is not a meshinfer frame")
    if version != FRAME_VERSION:
        raise ProtocolViolation(f"frame version {version}, this PC speaks {FRAME_VERSION}")
    limit = limits.get(number)
    if limit is None:
        raise ProtocolViolation(f"message {number} is not expected here")
    if header_length > limit.header or payload_length > limit.payload:
        raise ProtocolViolation(
            f"message {number} announces {header_length} + {payload_length} bytes, "
            f"allowed are {limit.header} + {limit.payload}"
        )
    return number, header_length, payload_length, checksum
