from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from meshinfer.core.ids import Digest
from meshinfer.errors import PeerLost, ShardCorrupt
from meshinfer.weights.exchange import Exchange
from meshinfer.weights.incoming import Change
from meshinfer.weights.piece_choice import Standing
from meshinfer.weights.pull import LATE_S, LONELY_S, Pull
from meshinfer.weights.store import Store
from tests.mesh.virtual_time import run_virtual
from tests.weights.stage_maker import make_files, pieces_of

LOST = PeerLost("That PC is gone.")
COUNT = 4  # a graph and three pieces of weights
ALL = (1 << COUNT) - 1


@dataclass(eq=False)
class Played:
    """A source that the test plays."""

    standing: Standing
    is_known: bool = True
    is_growing: bool = False
    asked: int = 0


@dataclass
class Desk:
    """A pull, what it told, and the pieces."""

    pull: Pull
    exchange: Exchange
    data: dict[Digest, bytes]
    told: list[tuple[int, int]] = field(default_factory=list)

    def source(self, held: int = ALL, **more: Any) -> Played:
        played = Played(Standing(held), **more)
        self.pull.enlist(played)
        return played

    def take_all(self, source: Played) -> list[int]:
        taken = []
        while (number := self.pull.take(source)) is not None:
            taken.append(number)
            source.asked |= 1 << number
        return taken

    async def store(self, number: int) -> None:
        payload = memoryview(self.data[self.pull.pieces[number]])
        self.pull.stored(number, await self.pull.store(number, payload))

    async def waits(self, seconds: float) -> None:
        """As a source does that has nothing to ask for, for so long."""
        end = self.now() + seconds
        while self.now() < end and not self.pull.over:
            await self.pull.wait()

    def now(self) -> float:
        return asyncio.get_running_loop().time()


def virtual(test: Callable[[Desk], Coroutine[Any, Any, None]]) -> Callable[[Path], None]:
    """Run a test with a desk, in virtual time."""

    def run(tmp_path: Path) -> None:
        manifest, content = make_files(tmp_path / "origin")
        data = {Digest(hashlib.sha256(one).hexdigest()): one for one in pieces_of(content)}
        store = Store(tmp_path / "mine")

        async def main() -> None:
            with ThreadPoolExecutor(1) as executor, store.partial(manifest) as partial:
                told: list[tuple[int, int]] = []
                exchange = Exchange(store, executor)
                pull = Pull(partial, lambda done, total: told.append((done, total)), exchange)
                await test(Desk(pull, exchange, data, told))

        run_virtual(main())

    run.__name__ = test.__name__
    return run


@virtual
async def test_every_piece_is_given_out_once_and_counted(desk: Desk) -> None:
    taken = desk.take_all(desk.source())
    assert sorted(taken) == list(range(COUNT))
    for number in taken:
        assert not desk.pull.over
        await desk.store(number)
    assert desk.pull.finished
    assert desk.told[0][0] == 0
    assert desk.told[-1][0] == desk.told[-1][1] == sum(map(len, desk.data.values()))
    assert len(desk.told) == len(taken) + 1


@virtual
async def test_what_a_source_lacks_is_left_to_others(desk: Desk) -> None:
    poor, rich = desk.source(0b0001), desk.source()
    assert desk.take_all(poor) == [0]
    assert sorted(desk.take_all(rich)) == [1, 2, 3]


@virtual
async def test_what_does_not_come_is_given_out_again(desk: Desk) -> None:
    one, two = desk.source(), desk.source()
    taken = desk.take_all(one)
    assert desk.take_all(two) == []
    desk.pull.give_back(*taken[:2])
    assert sorted(desk.take_all(two)) == sorted(taken[:2])


@virtual
async def test_others_are_told_what_is_coming_and_what_came(desk: Desk) -> None:
    news: list[tuple[Change, Digest]] = []
    pieces = desk.pull.pieces
    with desk.exchange.incoming.watch(lambda change, digest: news.append((change, digest))):
        source = desk.source(0b0011)
        first, second = desk.take_all(source)
        desk.pull.give_back(first)
        await desk.store(second)
    assert news == [
        (Change.ASKED, pieces[first]),
        (Change.ASKED, pieces[second]),
        (Change.DROPPED, pieces[first]),
        (Change.STORED, pieces[second]),
    ]


@virtual
async def test_a_wrong_piece_is_not_counted(desk: Desk) -> None:
    number = desk.take_all(desk.source())[0]
    with pytest.raises(ShardCorrupt):
        await desk.pull.store(number, memoryview(b"other bytes"))
    assert [done for done, _ in desk.told] == [0]
    assert desk.pull.is_missing(number)


@virtual
async def test_the_last_source_leaving_is_the_end_with_its_reason(desk: Desk) -> None:
    one, two = desk.source(), desk.source()
    desk.pull.give_up(one, PeerLost("first"))
    assert not desk.pull.over
    desk.pull.give_up(two, LOST)
    assert desk.pull.hopeless
    assert desk.pull.reason is LOST


@virtual
async def test_when_no_source_holds_what_is_missing_it_ends_at_once(desk: Desk) -> None:
    source = desk.source(0b0111)
    for number in desk.take_all(source):
        assert not desk.pull.over  # the rest is kept for another time
        await desk.store(number)
    began = desk.now()
    await desk.waits(60.0)
    assert desk.pull.hopeless
    assert desk.now() == began


@virtual
async def test_a_source_that_has_not_said_what_it_holds_is_waited_for(desk: Desk) -> None:
    desk.source(0)
    silent = desk.source(0, is_known=False)
    await desk.waits(2 * LONELY_S)  # it answers or is given up, within its own bounds
    assert not desk.pull.over
    desk.pull.give_up(silent, LOST)
    assert desk.pull.hopeless


@virtual
async def test_two_that_wait_for_each_other_do_not_wait_for_ever(desk: Desk) -> None:
    """The other pulls the same stage and has nothing that we lack."""
    other = desk.source(0, is_growing=True)
    other.standing = Standing(0, coming=0b1111)
    began = desk.now()
    await desk.waits(LONELY_S - 1.0)
    assert not desk.pull.over
    await desk.waits(60.0)
    assert desk.pull.hopeless
    assert desk.now() - began == pytest.approx(LONELY_S, abs=1.0)


@virtual
async def test_one_that_grows_is_waited_for_as_long_as_it_does(desk: Desk) -> None:
    other = desk.source(0, is_growing=True)
    for number in range(COUNT):
        await desk.waits(LONELY_S - 1.0)
        assert not desk.pull.over
        other.standing = Standing((2 << number) - 1)
        desk.pull.moved()
        assert desk.take_all(other) == [number]
        await desk.store(number)
    assert desk.pull.finished


@virtual
async def test_a_late_piece_is_asked_of_one_other_and_no_more(desk: Desk) -> None:
    slow, other, third = desk.source(), desk.source(), desk.source()
    stuck = desk.take_all(slow)
    assert desk.take_all(other) == []
    await desk.waits(LATE_S)
    assert sorted(desk.take_all(other)) == sorted(stuck)
    assert desk.take_all(third) == []
    assert desk.take_all(slow) == []


@virtual
async def test_a_piece_that_comes_twice_counts_once(desk: Desk) -> None:
    slow, other = desk.source(0b0001), desk.source(0b0001)
    desk.take_all(slow)
    await desk.waits(LATE_S)
    desk.take_all(other)
    await desk.store(0)
    done = desk.told[-1]
    await desk.store(0)
    assert desk.told[-1] == done
    assert len(desk.told) == 2
    assert not desk.pull.is_missing(0)


@virtual
async def test_a_late_piece_that_one_of_two_lost_still_comes_from_the_other(desk: Desk) -> None:
    slow, other = desk.source(0b0001), desk.source(0b0001)
    desk.take_all(slow)
    await desk.waits(LATE_S)
    desk.take_all(other)
    desk.pull.give_back(0)
    assert desk.exchange.incoming.coming == {desk.pull.pieces[0]}
    assert desk.take_all(desk.source(0b0001)) == [0]  # one in flight: once more is allowed
    await desk.store(0)
    desk.pull.give_back(0)
    assert not desk.pull.is_missing(0)
    assert desk.exchange.incoming.coming == frozenset()


@virtual
async def test_patience_leaves_to_the_leader_what_others_cannot_give(desk: Desk) -> None:
    leader, follower = desk.source(), desk.source(0b0011)
    leader.standing = replace(leader.standing, spare=True)
    assert sorted(desk.take_all(leader)) == [2, 3]
    assert sorted(desk.take_all(follower)) == [0, 1]


@virtual
async def test_a_waiting_source_is_woken_by_what_another_gives_back(desk: Desk) -> None:
    one = desk.source()
    taken = desk.take_all(one)
    began = desk.now()
    waiting = asyncio.create_task(desk.pull.wait())
    await asyncio.sleep(0)
    desk.pull.give_back(taken[0])
    await waiting
    assert desk.now() == began


@virtual
async def test_work_lasts_no_longer_than_the_pull(desk: Desk) -> None:
    ended = asyncio.Event()

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    working = asyncio.create_task(desk.pull.unless_over(forever()))
    for number in desk.take_all(desk.source()):
        await desk.store(number)
    await working
    assert ended.is_set()


@virtual
async def test_work_that_fails_says_so(desk: Desk) -> None:
    async def fail() -> None:
        raise LOST

    with pytest.raises(PeerLost):
        await desk.pull.unless_over(fail())
