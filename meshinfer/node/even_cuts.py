"""Which cuts of a model to take when nobody says: even ones, at layers or inside them; and the
borders that a person names. Pure; called by `verify`, `split` and the benches.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from meshinfer.core.model import Unit, UnitKind, UnitRange
from meshinfer.errors import UsageError

Cut = tuple[UnitRange, ...]


def even_cut(units: Sequence[Unit], stages: int, inside_layer: bool) -> Cut:
    """`stages` ranges of a model, of nearly equal length: borders between layers, or within them.

    Raises UsageError when the model has too few such borders.
    """
    borders = [
        border
        for border in range(1, len(units))
        if _is_between_layers(units[border - 1], units[border]) != inside_layer
    ]
    if not 2 <= stages <= len(borders) + 1:
        where = "inside its layers" if inside_layer else "at its layers"
        choice = f"Choose 2 to {len(borders) + 1} stages." if borders else "Choose other borders."
        raise UsageError(
            f"A model of {len(units)} units cannot be cut evenly into {stages} stages {where}.",
            choice,
        )
    places = [(index * (len(borders) + 1)) // stages - 1 for index in range(1, stages)]
    return cut_at([borders[place] for place in places], len(units))


def cut_at(borders: Sequence[int], units: int) -> Cut:
    """The ranges between `borders`; both ends of the model may be among them. Raises UsageError:
    they do not ascend, or lie outside the model."""
    inner = [border for border in borders if border not in (0, units)]
    ends = [0, *inner, units]
    if any(first >= end for first, end in pairwise(ends)):
        raise UsageError(
            f"The borders {':'.join(map(str, borders))} are no cut of a model of {units} units.",
            f"Give ascending numbers from 0 to {units}, such as 0:{units // 2}:{units}.",
        )
    return tuple(UnitRange(first, end) for first, end in pairwise(ends))


def parse_borders(text: str) -> tuple[int, ...]:
    """`0:9:20:62` as numbers. Raises UsageError."""
    parts = text.split(":")
    if not all(part.isascii() and part.isdigit() and len(part) < 7 for part in parts):
        raise UsageError(
            f"{text[:60]!r} is no cut.", "Give borders between units, such as 0:9:20:62."
        )
    return tuple(int(part) for part in parts)


def _is_between_layers(before: Unit, behind: Unit) -> bool:
    ends = before.kind is UnitKind.EMBEDDING or behind.kind is UnitKind.HEAD
    return ends or before.layer != behind.layer
