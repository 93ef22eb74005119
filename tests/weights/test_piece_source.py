from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from meshinfer.core.ids import Digest
from meshinfer.errors import DiskFull, PeerLost, ShardCorrupt
from meshinfer.link.base import TRANSFER, Link
from meshinfer.link.memory import MemoryLink, memory_pair
from meshinfer.weights.partial_stage import PartialStage
from meshinfer.weights.piece_source import Patience, PieceSource
from meshinfer.weights.pull import Pull
from meshinfer.weights.store import Store
from meshinfer.wire.transfer import PieceData, PieceMissing, PieceRequest
from tests.weights.stage_maker import make_files, pieces_of

PIECES = 6
PATIENCE = Patience(window=2, writes=1, stall_s=5.0, failures=3)
pytestmark = pytest.mark.timeout(30)


@dataclass
class Desk:
    """One stage to get, and PCs that the test plays by hand."""

    partial: PartialStage
    data: dict[Digest, bytes]
    waits: list[float] = field(default_factory=list)
    calls: asyncio.Queue[MemoryLink] = field(default_factory=asyncio.Queue)
    dialled: list[MemoryLink] = field(default_factory=list)
    told: asyncio.Queue[int] = field(default_factory=asyncio.Queue)
    pull: Pull = field(init=False)

    def tell(self, done: int, total: int) -> None:
        self.told.put_nowait(total - done)

    async def until_left(self, size: int) -> None:
        """Until all but so many bytes are in their places."""
        while await self.told.get() > size:
            pass

    async def dial(self) -> Link:
        mine, theirs = memory_pair(TRANSFER)
        self.dialled.append(mine)
        await self.calls.put(theirs)
        return mine

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)

    def source(self, patience: Patience = PATIENCE) -> PieceSource:
        return PieceSource(self.dial, self.pull, patience, self.sleep)

    async def serve(self, link: MemoryLink, count: int) -> None:
        """Answer so many requests rightly."""
        for _ in range(count):
            digest = await asked(link)
            await link.send(PieceData(digest), self.data[digest])


async def asked(link: MemoryLink) -> Digest:
    message = (await link.receive()).message
    assert isinstance(message, PieceRequest)
    return message.digest


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    manifest, content = make_files(tmp_path / "origin", PIECES - 1)
    data = {Digest(hashlib.sha256(one).hexdigest()): one for one in pieces_of(content)}
    with ThreadPoolExecutor(2) as executor, Store(tmp_path / "mine").partial(manifest) as partial:
        desk = Desk(partial, data)
        desk.pull = Pull(partial, desk.tell, executor)
        yield desk


def test_waits_double_up_to_the_longest() -> None:
    patience = Patience(first_wait_s=0.5, longest_wait_s=8.0)
    assert [patience.wait_s(count) for count in (1, 2, 3, 4, 5, 6, 10_000)] == [
        0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0,
    ]  # fmt: skip


async def test_no_more_than_the_window_is_in_flight(desk: Desk) -> None:
    desk.pull.expect(1)
    run = asyncio.create_task(desk.source().run())
    link = await desk.calls.get()
    first, second = await asked(link), await asked(link)
    for _ in range(20):
        await asyncio.sleep(0)
    taken = {first, second}
    assert set(desk.data) - taken == {
        digest for digest in iter(lambda: desk.pull.take(set()), None)
    }
    desk.pull.give_back(*sorted(set(desk.data) - taken))
    for digest in (first, second):
        await link.send(PieceData(digest), desk.data[digest])
    await desk.serve(link, PIECES - 2)
    await run
    assert desk.pull.finished


async def test_what_was_in_flight_on_a_cut_link_is_asked_for_again(desk: Desk) -> None:
    desk.pull.expect(1)
    run = asyncio.create_task(desk.source().run())
    link = await desk.calls.get()
    lost = {await asked(link), await asked(link)}
    await link.close()
    link = await desk.calls.get()
    again = {await asked(link), await asked(link)}
    assert again == lost
    for digest in again:
        await link.send(PieceData(digest), desk.data[digest])
    await desk.serve(link, PIECES - 2)
    await run
    assert desk.pull.finished
    assert desk.waits == [0.5]


async def test_failures_in_a_row_end_it_with_the_reason(desk: Desk) -> None:
    desk.pull.expect(1)
    run = asyncio.create_task(desk.source().run())
    for _ in range(PATIENCE.failures):
        await (await desk.calls.get()).close()
    await run
    assert desk.pull.hopeless
    assert isinstance(desk.pull.reason, PeerLost)
    assert desk.waits == [0.5, 1.0]


async def test_every_link_is_closed(desk: Desk) -> None:
    desk.pull.expect(1)
    run = asyncio.create_task(desk.source().run())
    await (await desk.calls.get()).close()
    link = await desk.calls.get()
    await desk.serve(link, PIECES)
    await run
    with pytest.raises(PeerLost):
        await link.receive()
    assert [one.closed for one in desk.dialled] == [True, True]


async def test_an_idle_source_takes_over_what_a_lost_one_held(desk: Desk) -> None:
    """The first has done all it was given and waits; the second dies with a piece in flight."""
    desk.pull.expect(2)
    quick = asyncio.create_task(desk.source().run())
    good = await desk.calls.get()
    held = [await asked(good), await asked(good)]
    slow = asyncio.create_task(desk.source(replace(PATIENCE, failures=1)).run())
    bad = await desk.calls.get()
    stuck = {await asked(bad), await asked(bad)}
    for digest in held:
        await good.send(PieceData(digest), desk.data[digest])
    await desk.serve(good, PIECES - len(held) - len(stuck))
    await desk.until_left(sum(len(desk.data[digest]) for digest in stuck))
    await bad.close()
    await desk.serve(good, len(stuck))
    await asyncio.gather(quick, slow)
    assert desk.pull.finished
    assert not desk.pull.hopeless


async def test_an_idle_source_takes_over_what_another_lacks(desk: Desk) -> None:
    desk.pull.expect(2)
    quick = asyncio.create_task(desk.source().run())
    good = await desk.calls.get()
    held = [await asked(good), await asked(good)]
    slow = asyncio.create_task(desk.source().run())
    poor = await desk.calls.get()
    lacking = [await asked(poor), await asked(poor)]
    for digest in held:
        await good.send(PieceData(digest), desk.data[digest])
    await desk.serve(good, PIECES - len(held) - len(lacking))
    for digest in lacking:
        await poor.send(PieceMissing(digest, "never had it"))
    await desk.serve(good, len(lacking))
    await asyncio.gather(quick, slow)
    assert desk.pull.finished


async def test_three_wrong_pieces_on_several_links_are_three(desk: Desk) -> None:
    """A source does not get a new account by being dialled again."""
    desk.pull.expect(1)
    run = asyncio.create_task(desk.source(replace(PATIENCE, failures=99)).run())
    for _ in range(3):
        link = await desk.calls.get()
        digest = await asked(link)
        await link.send(PieceData(digest), b"wrong")
        await link.close()
    await run
    assert desk.pull.hopeless
    assert len(desk.dialled) == 3
    assert isinstance(desk.pull.reason, ShardCorrupt)


@pytest.mark.parametrize("stuck", ["dialling", "waiting"])
async def test_a_dead_source_does_not_hold_up_what_another_finished(desk: Desk, stuck: str) -> None:
    reached, ended = asyncio.Event(), asyncio.Event()

    async def forever(*_: object) -> None:
        reached.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def dial() -> Link:
        if stuck == "dialling":
            await forever()
        raise PeerLost("Nobody answers.")

    desk.pull.expect(2)
    dead = asyncio.create_task(PieceSource(dial, desk.pull, PATIENCE, forever).run())
    await reached.wait()
    living = asyncio.create_task(desk.source().run())
    await desk.serve(await desk.calls.get(), PIECES)
    await asyncio.gather(dead, living)
    assert desk.pull.finished
    assert ended.is_set()


async def test_a_full_disk_closes_the_link_and_is_raised(desk: Desk, tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs a device that is always full")
    weights = next((tmp_path / "mine" / "partial").glob("*/openvino_model.bin"))
    weights.unlink()
    weights.symlink_to("/dev/full")
    desk.pull.expect(1)
    run = asyncio.create_task(desk.source(replace(PATIENCE, window=6, writes=6)).run())
    link = await desk.calls.get()
    with contextlib.suppress(PeerLost):  # it may leave before all is sent
        await desk.serve(link, PIECES)
    with pytest.raises(DiskFull):
        await run
    assert desk.dialled[0].closed


async def test_a_cancelled_source_gives_back_what_it_asked_for(desk: Desk) -> None:
    desk.pull.expect(1)
    run = asyncio.create_task(desk.source().run())
    link = await desk.calls.get()
    await asked(link)
    run.cancel()
    await asyncio.wait([run])
    assert run.cancelled()
    assert {digest for digest in iter(lambda: desk.pull.take(set()), None)} == set(desk.data)
    assert desk.dialled[0].closed
