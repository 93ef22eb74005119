"""Payload of the cache census: which sequences are held, and their tokens, so that nobody has to
trust a hash.

A table of (sequence, length), then the token ids of all of them (absent in `CacheKeep`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshinfer.errors import ProtocolViolation

ENTRY = np.dtype([("sequence", "<u4"), ("length", "<u4")])
MAX_SEQUENCES = 4096
MAX_CENSUS_BYTES = 8 << 20
"""Two million tokens; who holds more tells of its first ones only."""


@dataclass(frozen=True, slots=True)
class Held:
    """The first tokens of a sequence, as one stage or all stages hold them."""

    sequence: int
    tokens: NDArray[np.int32]  # [length]


def limited(held: tuple[Held, ...]) -> tuple[Held, ...]:
    """As many of `held`, from the first on, as a census may carry."""
    chosen, size = [], 0
    for one in held[:MAX_SEQUENCES]:
        size += ENTRY.itemsize + one.tokens.nbytes
        if size > MAX_CENSUS_BYTES:
            break
        chosen.append(one)
    return tuple(chosen)


def pack_census(held: tuple[Held, ...]) -> bytes:
    """Table and tokens of sequences that are within the limits."""
    table = pack_lengths(tuple((one.sequence, len(one.tokens)) for one in held))
    return table + b"".join(one.tokens.astype("<i4").tobytes() for one in held)


def unpack_census(payload: memoryview, sequences: int, vocabulary_size: int) -> tuple[Held, ...]:
    """Raises ProtocolViolation."""
    table = _table(payload, sequences)
    start = sequences * ENTRY.itemsize
    ids = np.frombuffer(payload[start : start + (len(payload) - start) // 4 * 4], "<i4")
    if start + 4 * len(ids) != len(payload) or sum(length for _, length in table) != len(ids):
        raise ProtocolViolation("a census whose lengths do not add up")
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < vocabulary_size:
        raise ProtocolViolation(f"a token id outside 0..{vocabulary_size - 1}")
    held, place = [], 0
    for sequence, length in table:
        held.append(Held(sequence, ids[place : place + length]))
        place += length
    return tuple(held)


def pack_lengths(lengths: tuple[tuple[int, int], ...]) -> bytes:
    """(sequence, length) of what is kept."""
    return np.array(list(lengths), ENTRY).tobytes()


def unpack_lengths(payload: memoryview, sequences: int) -> tuple[tuple[int, int], ...]:
    """Raises ProtocolViolation."""
    table = _table(payload, sequences)
    if len(payload) != sequences * ENTRY.itemsize:
        raise ProtocolViolation("more than the announced sequences")
    return table


def common(held: tuple[Held, ...], own: dict[int, NDArray[np.int32]]) -> tuple[Held, ...]:
    """What of `held` is in `own` too: for each sequence the tokens up to the first difference."""
    agreed = []
    for one in held:
        mine = own.get(one.sequence)
        if mine is None:
            continue
        length = min(len(mine), len(one.tokens))
        unequal = np.flatnonzero(mine[:length] != one.tokens[:length])
        length = int(unequal[0]) if len(unequal) else length
        if length:
            agreed.append(Held(one.sequence, one.tokens[:length]))
    return tuple(agreed)


def _table(payload: memoryview, sequences: int) -> tuple[tuple[int, int], ...]:
    if not 0 <= sequences <= MAX_SEQUENCES or len(payload) < sequences * ENTRY.itemsize:
        raise ProtocolViolation(f"a table of {sequences} sequences in {len(payload)} bytes")
    table = np.frombuffer(payload[: sequences * ENTRY.itemsize], ENTRY).tolist()
    if len({sequence for sequence, _ in table}) != len(table):
        raise ProtocolViolation("a sequence twice")
    return tuple(table)
