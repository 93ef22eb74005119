"""Reading and hashing the bytes of a piece, for as long as they are many: into memory that is there
already, and with courtesy. Blocks; called on threads.
"""

from __future__ import annotations

import hashlib
from io import FileIO

from meshinfer.core.courtesy import STRETCH_BYTES, give_way

Bytes = bytes | bytearray | memoryview


def piece_digest(data: Bytes) -> bytes:
    """SHA-256, 32 bytes."""
    view = memoryview(data).cast("B")
    digest = hashlib.sha256()
    for start in range(0, len(view), STRETCH_BYTES):
        digest.update(view[start : start + STRETCH_BYTES])
        give_way()
    return digest.digest()


def fill(file: FileIO, target: memoryview) -> bool:
    """Read from where the file stands until `target` is full; False when the file ends before."""
    rest = target
    while rest:
        count = file.readinto(rest)
        if not count:
            return False
        rest = rest[count:]
    return True
