from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from meshinfer.core.ids import Digest
from meshinfer.errors import PeerLost, ShardCorrupt
from meshinfer.weights.pull import Pull
from meshinfer.weights.store import Store
from tests.weights.stage_maker import make_files, pieces_of

NOTHING: set[Digest] = set()
LOST = PeerLost("That PC is gone.")


class Desk:
    """A pull of a graph and three pieces of weights, and what it told."""

    def __init__(self, pull: Pull, told: list[tuple[int, int]], pieces: list[bytes]) -> None:
        self.pull = pull
        self.told = told
        self.data = {Digest(hashlib.sha256(one).hexdigest()): one for one in pieces}

    def take_all(self) -> list[Digest]:
        taken = []
        while (digest := self.pull.take(NOTHING)) is not None:
            taken.append(digest)
        return taken

    async def store(self, digest: Digest) -> None:
        self.pull.stored(await self.pull.store(digest, memoryview(self.data[digest])))


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    manifest, content = make_files(tmp_path / "origin")
    told: list[tuple[int, int]] = []
    with ThreadPoolExecutor(1) as executor, Store(tmp_path / "mine").partial(manifest) as partial:
        pull = Pull(partial, lambda done, total: told.append((done, total)), executor)
        yield Desk(pull, told, pieces_of(content))


async def _idle(pull: Pull) -> asyncio.Task[None]:
    """A source that has nothing to ask for, and waits."""
    task = asyncio.create_task(pull.wait())
    await asyncio.sleep(0)
    return task


async def test_every_piece_is_given_out_once_and_counted(desk: Desk) -> None:
    taken = desk.take_all()
    assert sorted(taken) == sorted(desk.data)
    for digest in taken:
        assert not desk.pull.over
        await desk.store(digest)
    assert desk.pull.finished
    assert desk.told[0][0] == 0
    assert desk.told[-1][0] == desk.told[-1][1] == sum(map(len, desk.data.values()))
    assert len(desk.told) == len(taken) + 1


async def test_what_a_source_lacks_is_left_to_others(desk: Desk) -> None:
    lacking = set(list(desk.data)[:-1])
    assert desk.pull.take(lacking) == list(desk.data)[-1]
    assert desk.pull.take(lacking) is None
    assert set(desk.take_all()) == lacking


async def test_what_comes_back_is_given_out_first_in_its_order(desk: Desk) -> None:
    first, second, *_ = taken = [desk.pull.take(NOTHING) for _ in range(3)]
    assert None not in taken
    desk.pull.give_back(first, second)  # type: ignore[arg-type]
    assert [desk.pull.take(NOTHING), desk.pull.take(NOTHING)] == [first, second]


async def test_a_wrong_piece_is_not_counted(desk: Desk) -> None:
    digest = desk.pull.take(NOTHING)
    assert digest is not None
    with pytest.raises(ShardCorrupt):
        await desk.pull.store(digest, memoryview(b"other bytes"))
    assert [done for done, _ in desk.told] == [0]


async def test_all_sources_waiting_means_that_nothing_will_come(desk: Desk) -> None:
    desk.pull.expect(2)
    desk.take_all()
    one = await _idle(desk.pull)
    assert not desk.pull.over
    two = await _idle(desk.pull)
    await asyncio.wait_for(asyncio.gather(one, two), 5)
    assert desk.pull.hopeless
    assert not desk.pull.finished


async def test_the_last_source_leaving_is_the_end_with_its_reason(desk: Desk) -> None:
    desk.pull.expect(2)
    waiting = await _idle(desk.pull)
    desk.pull.give_up(LOST)
    await asyncio.wait_for(waiting, 5)
    assert desk.pull.hopeless
    assert desk.pull.reason is LOST


async def test_a_waiting_source_gets_what_another_just_gave_back(desk: Desk) -> None:
    """The one that gives back waits at once, before the one that it woke has run."""
    desk.pull.expect(2)
    digest, *_ = desk.take_all()
    waiting = await _idle(desk.pull)

    async def give_back_and_wait() -> None:
        desk.pull.give_back(digest)
        await desk.pull.wait()

    second = asyncio.create_task(give_back_and_wait())
    await asyncio.wait_for(waiting, 5)
    assert not desk.pull.hopeless
    assert desk.pull.take(NOTHING) == digest
    second.cancel()
    await asyncio.wait([second])


async def test_a_waiting_source_takes_over_from_one_that_leaves(desk: Desk) -> None:
    """Giving back and leaving happen in one step of the loop."""
    desk.pull.expect(2)
    digest, *_ = desk.take_all()
    waiting = await _idle(desk.pull)
    desk.pull.give_back(digest)
    desk.pull.give_up(LOST)
    await asyncio.wait_for(waiting, 5)
    assert not desk.pull.hopeless
    assert desk.pull.take(NOTHING) == digest


async def test_a_cancelled_wait_does_not_count_as_waiting(desk: Desk) -> None:
    desk.pull.expect(2)
    for _ in range(3):
        waiting = await _idle(desk.pull)
        waiting.cancel()
        await asyncio.wait([waiting])
    last = await _idle(desk.pull)
    assert not desk.pull.hopeless
    last.cancel()
    await asyncio.wait([last])
