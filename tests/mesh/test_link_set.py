"""Several links of one pair become one, the same on both sides, with never a moment without."""

from __future__ import annotations

from random import Random

import pytest

from meshinfer.core.ids import NodeId
from meshinfer.mesh.instructions import CloseLink, Post
from meshinfer.mesh.link_set import LinkRecord, LinkSet
from meshinfer.wire.membership import Superseded

A, B = NodeId("a"), NodeId("b")
SILENT_S, PATIENCE_S = 2.5, 2.0


def record(number: int, dialler: NodeId = A, drawn: int = 0, now: float = 0.0) -> LinkRecord:
    return LinkRecord(number, (dialler, drawn), now, now)


def links(*records: LinkRecord) -> LinkSet:
    made = LinkSet()
    for one in records:
        made.add(one)
    return made


def test_the_first_link_is_used_at_once() -> None:
    assert links(record(7)).primary == 7
    assert links().primary is None


def test_a_better_link_is_used_when_the_other_side_was_heard_on_it() -> None:
    old, better = record(1, B), record(2, A)
    made = links(old, better)
    assert made.unify(0.1, SILENT_S, PATIENCE_S) == []
    assert made.primary == 1
    better.heard(1, 0, 0.2)
    assert made.unify(0.2, SILENT_S, PATIENCE_S) == [Post(1, Superseded())]
    assert made.primary == 2


def test_the_old_link_is_read_until_the_other_side_ended_it() -> None:
    old, better = record(1, B), record(2, A)
    made = links(old, better)
    better.heard(1, 0, 0.2)
    made.unify(0.2, SILENT_S, PATIENCE_S)
    assert made.must_wait(2)
    assert made.unify(0.3, SILENT_S, PATIENCE_S) == []
    old.ended_by_peer = True
    assert not made.must_wait(2)
    (closed,) = made.unify(0.4, SILENT_S, PATIENCE_S)
    assert isinstance(closed, CloseLink)
    assert closed.link == 1
    assert [one.number for one in made.all()] == [2]


def test_an_end_that_is_not_answered_is_not_waited_for_for_ever() -> None:
    old, better = record(1, B), record(2, A)
    made = links(old, better)
    better.heard(1, 0, 0.2)
    made.unify(0.2, SILENT_S, PATIENCE_S)
    better.heard(2, 0, 2.1)
    assert [type(one) for one in made.unify(2.3, SILENT_S, PATIENCE_S)] == [CloseLink]


def test_a_worse_link_that_was_heard_first_does_not_replace_the_one_in_use() -> None:
    """Else messages sent on the new one could overtake those on their way on the old one."""
    used, worse = record(1, A), record(2, B)
    made = links(used, worse)
    worse.heard(1, 0, 0.2)
    assert made.unify(0.2, SILENT_S, PATIENCE_S) == []
    assert made.primary == 1


def test_a_better_link_not_heard_yet_is_not_ended() -> None:
    """The other side may use it already: both would end the other's."""
    middle, worst, best = record(1, B, 1), record(2, B, 9), record(3, A)
    made = links(middle, worst, best)
    middle.heard(1, 0, 0.1)
    assert made.unify(0.1, SILENT_S, PATIENCE_S) == [Post(2, Superseded())]


def test_a_silent_link_is_given_up_for_one_that_is_heard() -> None:
    dead, live = record(1, A), record(2, B)
    made = links(dead, live)
    live.heard(1, 0, 2.6)
    assert Post(1, Superseded()) in made.unify(2.6, SILENT_S, PATIENCE_S)
    assert made.primary == 2


def test_removing_the_used_link_leaves_the_best_of_the_rest() -> None:
    made = links(record(1, A), record(2, B, 5), record(3, B, 4))
    made.remove(1)
    assert made.primary == 3


def test_silence_counts_in_both_directions() -> None:
    one = record(1)
    for now in (0.0, 1.0, 2.0, 3.0):
        one.beat(now)
    one.heard(4, 1, 3.0)  # it is heard, but has seen only what was sent at 0.0
    assert one.silence_s(3.0, 1.0) == pytest.approx(2.0)
    one.heard(5, 4, 3.0)
    assert one.silence_s(3.0, 1.0) == 0.0


def test_a_seen_number_that_was_never_sent_proves_nothing() -> None:
    one = record(1)
    one.beat(0.0)
    one.heard(1, 999, 3.0)
    assert one.silence_s(3.0, 1.0) == pytest.approx(2.0)


class Pair:
    """Two LinkSets joined by ordered, delayed links; ticks as the runner makes them."""

    def __init__(self, random: Random) -> None:
        self.sides = (LinkSet(), LinkSet())
        self._random = random
        self._events: list[tuple[float, int, str, int]] = []  # time, side, what, link
        self._up: dict[tuple[int, int], float] = {}
        self._diallers: dict[int, NodeId] = {}

    def dial(self, number: int) -> None:
        """A link comes up on either side first, and is heard on each once the other has it."""
        random, first = self._random, self._random.randrange(2)
        self._diallers[number] = random.choice([A, B])
        start = random.random()
        later = start + 0.01 + 0.2 * random.random()
        self._up |= {(first, number): start, (1 - first, number): later}
        self._events += [(start, first, "up", number), (later, 1 - first, "up", number)]
        for side in (0, 1):
            heard = later + 0.2 * random.random() if side == first else later + 0.001
            self._events.append((heard, side, "heard", number))

    def run(self) -> None:
        self._events += [(0.1 * tick, side, "tick", 0) for tick in range(30) for side in (0, 1)]
        while self._events:
            self._events.sort()
            now, side, what, number = self._events.pop(0)
            self._happen(self.sides[side], what, number, now)
            for step in self.sides[side].unify(now, 1e9, 1e9):
                what = "ended" if isinstance(step, Post) else "down"
                at = max(now + 0.1, self._up[1 - side, step.link] + 0.001)  # type: ignore[union-attr]
                self._events.append((at, 1 - side, what, step.link))  # type: ignore[union-attr]
            if what != "tick" or self.sides[side]:
                assert self.sides[side].primary is not None, "a moment without a link"

    def best(self) -> int:
        return min(self._diallers, key=lambda number: (self._diallers[number], number))

    def _happen(self, own: LinkSet, what: str, number: int, now: float) -> None:
        known = own.get(number)
        if what == "up":
            own.add(record(number, self._diallers[number], number, now))
        elif what == "heard" and known is not None:
            known.heard(1, 0, now)
        elif what == "ended" and known is not None:
            known.ended_by_peer = True
        elif what == "down":
            own.remove(number)


@pytest.mark.parametrize("seed", range(200))
def test_both_sides_keep_the_same_link_and_always_have_one(seed: int) -> None:
    """Up to four links come up and are heard in any order on the two sides."""
    pair = Pair(Random(seed))
    for number in range(2 + seed % 3):
        pair.dial(number)
    pair.run()
    for side in pair.sides:
        assert [one.number for one in side.all()] == [pair.best()]
        assert side.primary == pair.best()
