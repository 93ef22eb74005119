"""Requests that wait for room, and whose turn it is. Pure; kept by the scheduler.

Lower priorities go first. Among equals users take turns (start-time fair queueing, Goyal et al.
1996, at one unit a request): fifty requests of one user do not keep another's first one waiting.
Nobody is passed for ever: who was overtaken too often goes before all others.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from meshinfer.serve.sequence import Sequence

MOST_OVERTAKINGS = 64


@dataclass(slots=True)
class _Place:
    sequence: Sequence
    arrival: int
    overtaken: int = 0
    returned: bool = False  # it ran before and gave its cache up: its answer has begun


class WaitingQueue:
    def __init__(self) -> None:
        self._places: dict[int, _Place] = {}  # by id() of the sequence: its key may change
        self._turns: dict[str, int] = {}  # of each user: when its next request is due
        self._turn = 0  # of the request that started last
        self._arrivals = 0
        self._tokens = 0

    def __len__(self) -> int:
        return len(self._places)

    @property
    def tokens(self) -> int:
        """Of all that wait."""
        return self._tokens

    def add(self, sequence: Sequence, returned: bool = False) -> None:
        self._arrivals += 1
        self._tokens += len(sequence.tokens)
        self._places[id(sequence)] = _Place(sequence, self._arrivals, returned=returned)

    def remove(self, sequence: Sequence) -> None:
        del self._places[id(sequence)]
        self._tokens -= len(sequence.tokens)

    def take(self, sequence: Sequence) -> None:
        """It starts: its user has had a turn, and those who came earlier were overtaken."""
        taken = self._places[id(sequence)]
        self.remove(sequence)
        for place in self._places.values():
            place.overtaken += place.arrival < taken.arrival
        if not taken.returned:
            self._turn = self._due(sequence.user)
            # A user who was away gets no credit for it: forgotten when its turns are over.
            self._turns = {user: due for user, due in self._turns.items() if due > self._turn}
            self._turns[sequence.user] = self._turn + 1

    def in_turn(self) -> list[Sequence]:
        """All of them, whose turn it is first."""
        before: Counter[str] = Counter()
        ranked = []
        for place in self._places.values():
            sequence = place.sequence
            due = self._due(sequence.user) + before[sequence.user]
            before[sequence.user] += 1
            patient = place.overtaken < MOST_OVERTAKINGS
            rank = (not place.returned, patient, sequence.priority, due, place.arrival)
            ranked.append((rank, sequence))
        ranked.sort(key=lambda one: one[0])
        return [sequence for _, sequence in ranked]

    def _due(self, user: str) -> int:
        return max(self._turns.get(user, 0), self._turn)
