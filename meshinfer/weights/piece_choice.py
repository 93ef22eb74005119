"""Which piece to ask a PC for next. Pure: sets of pieces enter, a piece leaves; chance is an
argument.

A set of pieces is an int, bit n for piece n: a stage of 64 GiB has 65536 pieces, and each question
here is a handful of operations on 8 KiB. Called by the pull.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

Random = Callable[[int], int]
"""n -> any of 0 .. n - 1."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What one source can give. `coming` is what it has asked others for itself. A `spare` one (the
    leader, from which everybody starts) is left what nobody else can give."""

    held: int = 0
    coming: int = 0
    has_room: bool = True  # one more request may be sent to it now
    spare: bool = False


def choose(
    wanted: int, mine: Standing, others: Sequence[Standing], random: Random, patient: bool = True
) -> int | None:
    """A piece of `wanted` to ask `mine` for; None when it has none, or none that should be asked.

    The rarest first, any among equals: so that PCs that pull the same stage get different pieces
    and then have something to give to each other. While `patient`, two kinds of pieces are left
    out: what a PC that is not spare holds and has room to send (only when `mine` is spare), and
    what is on its way to another source and lies nowhere but with spare ones: it can be had there
    in a moment, and two would carry it over the same uplink.
    """
    candidates = wanted & mine.held
    if patient:
        candidates &= ~_better_elsewhere(mine, others)
    if not candidates:
        return None
    for more_common in _at_least(one.held | one.coming for one in others):
        rare = candidates & ~more_common
        if rare:
            return _any_of(rare, random)
    return _any_of(candidates, random)


def set_of(numbers: Iterable[int]) -> int:
    """The set of these pieces, made in one go however many there are."""
    bits = bytearray()
    for number in numbers:
        if number >= len(bits) * 8:
            bits.extend(bytes(number // 8 + 1 - len(bits)))
        bits[number // 8] |= 1 << number % 8
    return int.from_bytes(bits, "little")


def _better_elsewhere(mine: Standing, others: Sequence[Standing]) -> int:
    held = ready = coming = 0
    for one in others:
        coming |= one.coming
        if not one.spare:
            held |= one.held
            ready |= one.held if one.has_room else 0
    if not mine.spare:
        held |= mine.held
    return (coming & ~held) | (ready if mine.spare else 0)


def _at_least(sets: Iterable[int]) -> list[int]:
    """Pieces that are in at least 1, 2, 3, ... of the sets."""
    levels: list[int] = []
    for one in sets:
        for level, known in enumerate(levels):
            levels[level], one = known | one, known & one
        if one:
            levels.append(one)
    return levels


def _any_of(pieces: int, random: Random) -> int:
    """The first from a random place on, and around."""
    start = random(pieces.bit_length())
    behind = pieces >> start
    return start + _lowest(behind) if behind else _lowest(pieces)


def _lowest(pieces: int) -> int:
    return (pieces & -pieces).bit_length() - 1
