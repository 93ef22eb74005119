from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from meshinfer.core.ids import Digest, NodeId
from meshinfer.errors import DiskFull, PeerLost, ProtocolViolation, ShardCorrupt, TimedOut
from meshinfer.link.base import TRANSFER, Link
from meshinfer.link.memory import MemoryLink, memory_pair
from meshinfer.weights.exchange import Exchange
from meshinfer.weights.patience import Patience
from meshinfer.weights.piece_source import PieceSource, Source
from meshinfer.weights.pull import Pull
from meshinfer.weights.store import Store
from meshinfer.wire.transfer import PieceData, PieceMissing, PieceRequest, PieceWrong
from tests.weights.hand_server import announce, asked, greet, welcome
from tests.weights.stage_maker import make_files, pieces_of

PIECES = 6
PATIENCE = Patience(window=2, writes=1, stall_s=5.0, failures=3)
pytestmark = pytest.mark.timeout(30)


@dataclass
class Desk:
    """One stage to get, and PCs that the test plays by hand."""

    folder: Path
    data: dict[Digest, bytes]
    waits: list[float] = field(default_factory=list)
    calls: asyncio.Queue[MemoryLink] = field(default_factory=asyncio.Queue)
    dialled: list[MemoryLink] = field(default_factory=list)
    told: asyncio.Queue[int] = field(default_factory=asyncio.Queue)
    bad: list[tuple[NodeId, str]] = field(default_factory=list)
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

    def note(self, node: NodeId, why: str) -> None:
        self.bad.append((node, why))

    def source(self, patience: Patience = PATIENCE, spare: bool = False) -> PieceSource:
        made = PieceSource(Source(self.dial, spare), self.pull, patience, self.sleep, self.note)
        self.pull.enlist(made)
        return made

    async def called(self) -> MemoryLink:
        """The next link, on which everything was announced."""
        link = await self.calls.get()
        await welcome(link)
        return link

    async def give(self, link: MemoryLink, digest: Digest) -> None:
        await link.send(PieceData(digest), self.data[digest])

    async def serve(self, link: MemoryLink, count: int) -> None:
        """Answer so many requests rightly."""
        for _ in range(count):
            await self.give(link, await asked(link))

    def size(self, digests: set[Digest]) -> int:
        return sum(len(self.data[digest]) for digest in digests)


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    manifest, content = make_files(tmp_path / "origin", PIECES - 1)
    data = {Digest(hashlib.sha256(one).hexdigest()): one for one in pieces_of(content)}
    store = Store(tmp_path / "mine")
    with ThreadPoolExecutor(2) as executor, store.partial(manifest) as partial:
        desk = Desk(tmp_path, data)
        desk.pull = Pull(partial, desk.tell, Exchange(store, executor))
        yield desk


async def test_no_more_than_the_window_is_in_flight(desk: Desk) -> None:
    run = asyncio.create_task(desk.source().run())
    link = await desk.called()
    taken = {await asked(link), await asked(link)}
    third = asyncio.create_task(asked(link))
    for _ in range(50):
        await asyncio.sleep(0)
    assert not third.done()
    for digest in taken:
        await desk.give(link, digest)
    await desk.give(link, await third)
    await desk.serve(link, PIECES - 3)
    await run
    assert desk.pull.finished


async def test_nothing_is_asked_before_it_is_announced_and_then_only_that(desk: Desk) -> None:
    run = asyncio.create_task(desk.source().run())
    link = await desk.calls.get()
    wanted = await greet(link)
    assert set(wanted) == set(desk.data)
    first = asyncio.create_task(asked(link))
    for _ in range(50):
        await asyncio.sleep(0)
    assert not first.done()
    for number in range(PIECES):
        await announce(link, wanted, wanted[: number + 1], growing=True)
        digest = await first
        assert digest == wanted[number]
        await desk.give(link, digest)
        first = asyncio.create_task(asked(link))
    await run
    first.cancel()
    await asyncio.wait([first])
    assert desk.pull.finished


async def test_what_was_in_flight_on_a_cut_link_is_asked_for_again(desk: Desk) -> None:
    run = asyncio.create_task(desk.source().run())
    link = await desk.called()
    lost = {await asked(link), await asked(link)}
    await desk.give(link, min(lost))
    await desk.until_left(desk.size(set(desk.data) - {min(lost)}))
    await link.close()
    link = await desk.calls.get()
    wanted = await greet(link)
    assert set(wanted) == set(desk.data)
    await announce(link, wanted)
    await desk.serve(link, PIECES - 1)
    await run
    assert desk.pull.finished
    assert desk.waits == [0.5]


async def test_failures_in_a_row_end_it_with_the_reason(desk: Desk) -> None:
    run = asyncio.create_task(desk.source().run())
    for _ in range(PATIENCE.failures):
        await (await desk.calls.get()).close()
    await run
    assert desk.pull.hopeless
    assert isinstance(desk.pull.reason, PeerLost)
    assert desk.waits == [0.5, 1.0]


async def test_every_link_is_closed(desk: Desk) -> None:
    run = asyncio.create_task(desk.source().run())
    await (await desk.calls.get()).close()
    link = await desk.called()
    await desk.serve(link, PIECES)
    await run
    with pytest.raises(PeerLost):
        await link.receive()
    assert [one.closed for one in desk.dialled] == [True, True]


async def test_an_idle_source_takes_over_what_a_lost_one_held(desk: Desk) -> None:
    """The first has done all it was given and waits; the second dies with pieces in flight."""
    quick = asyncio.create_task(desk.source().run())
    good = await desk.called()
    held = [await asked(good), await asked(good)]
    slow = asyncio.create_task(desk.source(replace(PATIENCE, failures=1)).run())
    bad = await desk.called()
    stuck = {await asked(bad), await asked(bad)}
    for digest in held:
        await desk.give(good, digest)
    await desk.serve(good, PIECES - len(held) - len(stuck))
    await desk.until_left(desk.size(stuck))
    await bad.close()
    await desk.serve(good, len(stuck))
    await asyncio.gather(quick, slow)
    assert desk.pull.finished
    assert not desk.pull.hopeless


async def test_an_idle_source_takes_over_what_another_lacks(desk: Desk) -> None:
    quick = asyncio.create_task(desk.source().run())
    good = await desk.called()
    held = [await asked(good), await asked(good)]
    slow = asyncio.create_task(desk.source().run())
    poor = await desk.called()
    lacking = [await asked(poor), await asked(poor)]
    for digest in held:
        await desk.give(good, digest)
    await desk.serve(good, PIECES - len(held) - len(lacking))
    for digest in lacking:
        await poor.send(PieceMissing(digest, "never had it"))
    await desk.serve(good, len(lacking))
    await asyncio.gather(quick, slow)
    assert desk.pull.finished


async def test_a_wrong_piece_is_told_noted_and_asked_of_another(desk: Desk) -> None:
    liar = asyncio.create_task(desk.source().run())
    bad = await desk.called()
    first, second = await asked(bad), await asked(bad)
    honest = asyncio.create_task(desk.source().run())
    good = await desk.called()
    await bad.send(PieceData(first), b"wrong" * 10)
    told = [(await bad.receive()).message for _ in range(2)]  # and what it is asked for instead
    assert PieceWrong(first) in told
    (third,) = (one.digest for one in told if isinstance(one, PieceRequest))
    served = set()
    for _ in range(PIECES - 2):
        digest = await asked(good)
        served.add(digest)
        await desk.give(good, digest)
    assert served == set(desk.data) - {second, third}
    await desk.give(bad, second)
    await desk.give(bad, third)
    await asyncio.gather(liar, honest)
    assert desk.pull.finished
    assert desk.bad == [(NodeId("server"), desk.bad[0][1])]
    assert first[:12] in desk.bad[0][1]


async def test_a_wrong_piece_is_asked_again_once_the_server_holds_it_still(desk: Desk) -> None:
    run = asyncio.create_task(desk.source().run())
    link = await desk.calls.get()
    wanted = await greet(link)
    await announce(link, wanted, wanted[:1])
    digest = await asked(link)
    await link.send(PieceData(digest), b"wrong")
    assert (await link.receive()).message == PieceWrong(digest)
    await announce(link, wanted)  # it has looked: its copy is right
    await desk.serve(link, PIECES)
    await run
    assert desk.pull.finished


async def test_three_wrong_pieces_on_several_links_are_three(desk: Desk) -> None:
    """A source does not get a new account by being dialled again."""
    run = asyncio.create_task(desk.source(replace(PATIENCE, failures=99)).run())
    for _ in range(3):
        link = await desk.called()
        digest = await asked(link)
        await link.send(PieceData(digest), b"wrong")
        await link.close()
    await run
    assert desk.pull.hopeless
    assert len(desk.dialled) == 3
    assert isinstance(desk.pull.reason, ShardCorrupt)
    assert len(desk.bad) == 3


async def test_bitmaps_for_other_pieces_are_a_violation(desk: Desk) -> None:
    run = asyncio.create_task(desk.source(replace(PATIENCE, wrong_answers=1)).run())
    link = await desk.calls.get()
    wanted = await greet(link)
    await announce(link, (*wanted, *[Digest("f" * 64)] * 3))
    await run
    assert isinstance(desk.pull.reason, ProtocolViolation)


async def test_silence_counts_as_a_cut(desk: Desk) -> None:
    run = asyncio.create_task(desk.source(replace(PATIENCE, stall_s=0.05, failures=1)).run())
    await desk.called()
    await run
    assert isinstance(desk.pull.reason, TimedOut)


async def test_signs_of_life_without_the_pieces_are_not_enough(desk: Desk) -> None:
    run = asyncio.create_task(desk.source(replace(PATIENCE, piece_s=0.3, failures=1)).run())
    link = await desk.calls.get()
    wanted = await greet(link)

    async def live() -> None:
        with contextlib.suppress(PeerLost):
            while True:
                await announce(link, wanted)
                await asyncio.sleep(0.02)

    living = asyncio.create_task(live())
    await run
    await living
    assert isinstance(desk.pull.reason, TimedOut)
    assert "no piece" in desk.pull.reason.cause


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

    hanging = PieceSource(Source(dial), desk.pull, PATIENCE, forever, desk.note)
    desk.pull.enlist(hanging)
    dead = asyncio.create_task(hanging.run())
    await reached.wait()
    living = asyncio.create_task(desk.source().run())
    await desk.serve(await desk.called(), PIECES)
    await asyncio.gather(dead, living)
    assert desk.pull.finished
    assert ended.is_set()


async def test_a_full_disk_closes_the_link_and_is_raised(desk: Desk) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs a device that is always full")
    weights = next((desk.folder / "mine" / "partial").glob("*/openvino_model.bin"))
    weights.unlink()
    weights.symlink_to("/dev/full")
    run = asyncio.create_task(desk.source(replace(PATIENCE, window=6, writes=6)).run())
    link = await desk.called()
    with contextlib.suppress(PeerLost):  # it may leave before all is sent
        await desk.serve(link, PIECES)
    with pytest.raises(DiskFull):
        await run
    assert desk.dialled[0].closed


async def test_a_cancelled_source_gives_back_what_it_asked_for(desk: Desk) -> None:
    run = asyncio.create_task(desk.source().run())
    link = await desk.called()
    await asked(link)
    run.cancel()
    await asyncio.wait([run])
    assert run.cancelled()
    assert desk.dialled[0].closed
    other = asyncio.create_task(desk.source().run())
    await desk.serve(await desk.called(), PIECES)
    await other
    assert desk.pull.finished


async def test_its_standing_is_that_of_the_link_and_gone_with_it(desk: Desk) -> None:
    source = desk.source(spare=True)
    assert not source.is_known
    assert not source.standing.has_room
    run = asyncio.create_task(source.run())
    link = await desk.calls.get()
    wanted = await greet(link)
    await announce(link, wanted, wanted[:1], wanted[1:3], growing=True)
    await asked(link)
    assert (source.standing.held, source.standing.coming) == (0b1, 0b110)
    assert source.standing.spare
    assert (source.is_known, source.is_growing, source.asked) == (True, True, 0b1)
    await link.close()
    await desk.calls.get()
    assert (source.standing.held, source.standing.coming, source.asked) == (0, 0, 0)
    assert not source.is_known
    run.cancel()
    await asyncio.wait([run])
