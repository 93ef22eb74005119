"""What a caller offers in the first bytes of TLS. Pure: bytes in, names out.

The server looks before the handshake, because who does the handshake depends on it: an event loop
or a thread. Nothing is believed because of it: the handshake that follows covers these bytes, and
one who lies here only comes to a door where he understands nobody (RFC 8446 4.1.2, RFC 7301).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

RECORD_BYTES = 5
MOST_BYTES = RECORD_BYTES + (1 << 14)
_HANDSHAKE = 22
_CLIENT_HELLO = 1
_ALPN = 16


def whole_length(begin: bytes) -> int | None:
    """Bytes of the first record; None while that cannot be said. 0 when this is no TLS."""
    if not begin:
        return None
    if begin[0] != _HANDSHAKE:
        return 0
    if len(begin) < RECORD_BYTES:
        return None
    return min(MOST_BYTES, RECORD_BYTES + int.from_bytes(begin[3:5], "big"))


def offered_protocols(record: bytes) -> tuple[bytes, ...]:
    """Names of protocols (ALPN) in a whole first record; none for whatever is not in order."""
    try:
        return tuple(_names(record))
    except (IndexError, struct.error):
        return ()


def _names(record: bytes) -> Iterator[bytes]:
    hello = memoryview(record)[RECORD_BYTES:]
    if hello[0] != _CLIENT_HELLO:
        return
    rest = hello[4 + 2 + 32 :]  # type and length, version, random
    for size in (1, 2, 1):  # session, cipher suites, compressions
        _, rest = _vector(rest, size)
    extensions, _ = _vector(rest, 2)
    while extensions:
        (kind,) = struct.unpack_from(">H", extensions)
        data, extensions = _vector(extensions[2:], 2)
        if kind == _ALPN:
            names, _ = _vector(data, 2)
            while names:
                name, names = _vector(names, 1)
                yield bytes(name)


def _vector(data: memoryview, size: int) -> tuple[memoryview, memoryview]:
    """What a length of `size` bytes announces, and what follows it."""
    if len(data) < size:
        raise IndexError("cut short")
    end = size + int.from_bytes(data[:size], "big")
    if len(data) < end:
        raise IndexError("cut short")
    return data[size:end], data[end:]
