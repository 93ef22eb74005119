"""A token tree as engines need it: depths, ancestors, who sees whom.

`parents` is what core.step.Row says: for each token the place of its parent in the row, which comes
first; -1 for the first token. Pure; called by whatever turns rows into arrays.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meshinfer.core.step import Row

Parents = tuple[int, ...]


def depths(parents: Parents) -> list[int]:
    """Ancestors of each token in the row: 0 for the first."""
    found: list[int] = []
    for parent in parents:
        found.append(found[parent] + 1 if found else 0)
    return found


def depth(row: Row, place: int) -> int:
    """Tokens of the row in front of that at `place`, as its text has them."""
    return len(path(row.parents, place)) - 1 if row.parents else place


def path(parents: Parents, place: int) -> list[int]:
    """Places from the first token to `place`, both included."""
    found = []
    while place >= 0:
        found.append(place)
        place = parents[place]
    return found[::-1]


def visible(parents: Parents) -> NDArray[np.uint8]:
    """[count, count]: 1 where the token of the row sees that of the column, itself included."""
    seen = np.eye(len(parents), dtype=np.uint8)
    for place, parent in enumerate(parents[1:], 1):
        seen[place] |= seen[parent]
    return seen


def positions(row: Row) -> NDArray[np.int64]:
    """Of the row's tokens in their text, [count]."""
    if row.parents:
        return row.position + np.array(depths(row.parents), np.int64)
    return np.arange(row.position, row.position + row.count, dtype=np.int64)
