"""Guesses of all sources as one tree, and the part of it that is worth its place in a row. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from meshinfer.serve.acceptance import Evidence


@dataclass(frozen=True, slots=True)
class Candidate:
    """A guessed token. `parent` is its place in the list of candidates, -1: it follows what is
    known or under way. Parents come first."""

    parent: int
    token: int
    evidence: tuple[Evidence, ...]
    chance: float  # that it is right where its parent is
    reach: float  # that it is right: along the whole path


class CandidateTree:
    """Grows guess by guess; equal guesses of two sources become one."""

    def __init__(self) -> None:
        self._places: dict[tuple[int, int], int] = {}
        self._parents: list[int] = []
        self._tokens: list[int] = []
        self._evidence: list[list[Evidence]] = []

    def __len__(self) -> int:
        return len(self._tokens)

    def add(self, parent: int, token: int, evidence: Evidence) -> int:
        """Its place."""
        place = self._places.get((parent, token))
        if place is None:
            place = self._places[parent, token] = len(self._tokens)
            self._parents.append(parent)
            self._tokens.append(token)
            self._evidence.append([])
        self._evidence[place].append(evidence)
        return place

    def parent(self, place: int) -> int:
        return self._parents[place]

    def token(self, place: int) -> int:
        return self._tokens[place]

    def evidence(self, place: int) -> Sequence[Evidence]:
        return self._evidence[place]


def chosen(candidates: Sequence[Candidate], places: Sequence[int]) -> tuple[Candidate, ...]:
    """The candidates at `places` (closed under parents) with parents renumbered, in that order of
    places: a parent stays in front of its children."""
    return _renumbered(candidates, sorted(places))


def is_chain(candidates: Sequence[Candidate]) -> bool:
    return all(one.parent == place - 1 for place, one in enumerate(candidates))


def best_chain(candidates: Sequence[Candidate]) -> list[int]:
    """Places of the path whose expected length is greatest."""
    lengths = [one.reach for one in candidates]
    best_child: dict[int, int] = {}
    for place in range(len(candidates) - 1, -1, -1):
        if place in best_child:
            lengths[place] += lengths[best_child[place]]
        parent = candidates[place].parent
        if parent not in best_child or lengths[best_child[parent]] < lengths[place]:
            best_child[parent] = place
    path: list[int] = []
    following = best_child.get(-1)
    while following is not None:
        path.append(following)
        following = best_child.get(following)
    return path


def _depth_first(candidates: Sequence[Candidate]) -> list[int]:
    """Places so that the likeliest path from the beginning lies in one piece in front: when it is
    accepted, nothing of the cache has to move."""
    children: dict[int, list[int]] = {}
    for place, one in enumerate(candidates):
        children.setdefault(one.parent, []).append(place)
    order: list[int] = []
    stack = sorted(children.get(-1, []), key=lambda place: candidates[place].reach)
    while stack:
        place = stack.pop()
        order.append(place)
        stack += sorted(children.get(place, []), key=lambda other: candidates[other].reach)
    return order


def likeliest_first(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """The same tree, depth first."""
    return _renumbered(candidates, _depth_first(candidates))


def _renumbered(candidates: Sequence[Candidate], order: Sequence[int]) -> tuple[Candidate, ...]:
    """Those in `order`, in which parents come first."""
    renamed = {place: index for index, place in enumerate(order)}
    return tuple(
        replace(one, parent=renamed.get(one.parent, -1))
        for one in (candidates[place] for place in order)
    )
