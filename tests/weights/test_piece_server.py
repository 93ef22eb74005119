"""The serving side alone: what it answers to messages, one link or several."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from meshinfer.core.ids import Digest
from meshinfer.core.model import StageManifest
from meshinfer.errors import ProtocolViolation, VersionMismatch
from meshinfer.link.base import TRANSFER, Received
from meshinfer.link.memory import MemoryLink, memory_pair
from meshinfer.link.memory_pipe import CAPACITY
from meshinfer.weights.exchange import Exchange
from meshinfer.weights.piece_server import READ_AHEAD, PieceServer
from meshinfer.weights.store import Store
from meshinfer.wire import registry
from meshinfer.wire.membership import Goodbye
from meshinfer.wire.transfer import (
    TRANSFER_VERSION,
    PieceData,
    PieceMissing,
    PieceRequest,
    PiecesHeld,
    PiecesWanted,
    PieceWrong,
    TransferHello,
    pack_digests,
    unpack_bitmaps,
)
from tests.weights.hand_server import stored
from tests.weights.stage_maker import flip
from tests.weights.swarm import publish_small

DEADLINE_S = 20.0
COUNT = 8
HELLO = TransferHello(TRANSFER_VERSION)


@dataclass
class Caller:
    """A puller that the test plays."""

    link: MemoryLink
    serving: asyncio.Task[None]
    wanted: tuple[Digest, ...] = ()

    async def want(self, *digests: Digest) -> tuple[bool, int, int]:
        """Say so; what is answered at once."""
        self.wanted = digests
        await self.link.send(PiecesWanted(Digest("0" * 64)), pack_digests(digests))
        return await self.told()

    async def told(self) -> tuple[bool, int, int]:
        """The next (growing, held, coming)."""
        received = await self.link.receive()
        while not isinstance(received.message, PiecesHeld):
            received = await self.link.receive()
        held, coming = unpack_bitmaps(len(self.wanted), received.payload)
        return received.message.growing, held, coming

    async def until(self, growing: bool, held: int, coming: int) -> None:
        while await self.told() != (growing, held, coming):
            pass

    async def get(self, digest: Digest) -> Received:
        """The answer to a request."""
        await self.link.send(PieceRequest(digest))
        received = await self.link.receive()
        while isinstance(received.message, PiecesHeld):
            received = await self.link.receive()
        return received


@dataclass
class Desk:
    store: Store
    manifest: StageManifest
    exchange: Exchange
    server: PieceServer
    callers: list[Caller] = field(default_factory=list)

    @property
    def pieces(self) -> tuple[Digest, ...]:
        return tuple(digest for file in self.manifest.files for digest in file.pieces)

    @property
    def weights(self) -> Path:
        folder = self.store.stage_folder(self.manifest.digest)
        assert folder is not None
        return folder / "openvino_model.bin"

    async def caller(self, greet: bool = True) -> Caller:
        mine, theirs = memory_pair(TRANSFER)
        caller = Caller(mine, asyncio.create_task(self.server.serve(theirs)))
        self.callers.append(caller)
        if greet:
            await mine.send(HELLO)
        return caller


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    store = Store(tmp_path / "theirs")
    manifest = publish_small(store, COUNT)
    with ThreadPoolExecutor(2) as executor:
        exchange = Exchange(store, executor)
        desk = Desk(store, manifest, exchange, PieceServer(exchange))
        async with asyncio.timeout(DEADLINE_S):
            yield desk
            for caller in desk.callers:
                await caller.link.close()
                await asyncio.wait([caller.serving])


async def test_it_tells_what_it_holds_and_sends_it(desk: Desk) -> None:
    caller = await desk.caller()
    unknown = Digest("b" * 64)
    assert await caller.want(desk.pieces[0], unknown, desk.pieces[3]) == (False, 0b101, 0)
    for digest in desk.pieces:  # also what was not in the list
        answer = await caller.get(digest)
        assert answer.message == PieceData(digest)
        assert answer.payload == stored(desk.store, digest)
    assert isinstance((await caller.get(unknown)).message, PieceMissing)


@pytest.mark.parametrize("text", ["../../etc/passwd", "", "C:\\x", "B" * 64])
async def test_what_is_no_digest_is_missing(desk: Desk, text: str) -> None:
    caller = await desk.caller()
    assert (await caller.get(Digest(text))).message == PieceMissing(
        Digest(text), "not in this PC's store"
    )


async def test_answers_keep_the_order_of_the_requests(desk: Desk) -> None:
    caller = await desk.caller()
    order = [desk.pieces[index] for index in (5, 1, 7, 0, 2, 6, 3)]
    for digest in order:
        await caller.link.send(PieceRequest(digest))
    answers = [await caller.link.receive() for _ in order]
    assert [answer.message.digest for answer in answers] == order
    for digest, answer in zip(order, answers, strict=True):
        assert answer.payload == stored(desk.store, digest)


@pytest.mark.slow
async def test_a_puller_that_does_not_read_is_not_read_ahead_for(desk: Desk) -> None:
    """However much it asks for: requests stay in the link once some pieces are read."""
    caller = await desk.caller()
    sent = 0

    async def ask_for_ever() -> None:
        nonlocal sent
        while True:
            await caller.link.send(PieceRequest(desk.pieces[1]))
            sent += 1
            await asyncio.sleep(0)

    asking = asyncio.create_task(ask_for_ever())
    before = -1
    while before != sent:  # both directions of the link are full, and then nothing moves
        before = sent
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                await asyncio.Event().wait()
    asking.cancel()
    await asyncio.wait([asking])
    request = len(registry.pack(PieceRequest(desk.pieces[1])))
    waiting = CAPACITY // request + CAPACITY // len(stored(desk.store, desk.pieces[1]))
    assert sent <= waiting + READ_AHEAD + 8


async def test_news_of_this_pcs_own_pull_are_passed_on(desk: Desk) -> None:
    caller = await desk.caller()
    one, two, three = (Digest(letter * 64) for letter in "cde")
    assert await caller.want(one, two, three) == (False, 0, 0)
    incoming = desk.exchange.incoming
    with incoming.pulling([one, two]):
        await caller.until(True, 0, 0)
        incoming.asked(one)
        incoming.asked(two)
        await caller.until(True, 0, 0b011)
        incoming.stored(one)
        incoming.dropped(two)
        await caller.until(True, 0b001, 0)
        incoming.lost(one)
        await caller.until(True, 0, 0)
        incoming.asked(two)
    await caller.until(False, 0, 0)


async def test_who_comes_later_hears_what_is_coming_already(desk: Desk) -> None:
    one = Digest("c" * 64)
    with desk.exchange.incoming.pulling([one]):
        desk.exchange.incoming.asked(one)
        caller = await desk.caller()
        assert await caller.want(one) == (True, 0, 0b1)


async def test_many_changes_are_told_at_once(desk: Desk) -> None:
    caller = await desk.caller()
    digests = [Digest(f"{number:064x}") for number in range(500)]
    await caller.want(*digests)
    for digest in digests:
        desk.exchange.incoming.stored(digest)
    told = 0
    held = 0
    while held != (1 << 500) - 1:
        _, held, _ = await caller.told()
        told += 1
    assert told <= 2


async def test_pieces_of_another_stage_are_given_too(desk: Desk) -> None:
    """A split elsewhere: a stage of more of the same weights shares all but the graph."""
    other = publish_small(Store(desk.weights.parents[3] / "elsewhere"), COUNT + 4)
    wanted = [digest for file in other.files for digest in file.pieces]
    caller = await desk.caller()
    _, held, _ = await caller.want(*wanted)
    assert held.bit_count() == COUNT
    assert all(held >> wanted.index(digest) & 1 for digest in desk.manifest.files[0].pieces)


async def test_a_piece_of_a_stage_that_is_here_in_part_is_given(desk: Desk) -> None:
    mine = Store(desk.weights.parents[3] / "part")
    caller = await desk.caller()
    with mine.partial(desk.manifest) as partial:
        for digest in desk.pieces[:3]:
            partial.write(digest, stored(desk.store, digest))
        server = PieceServer(Exchange(mine, desk.exchange.executor))
        near, far = memory_pair(TRANSFER)
        caller = Caller(near, asyncio.create_task(server.serve(far)))
        desk.callers.append(caller)
        await near.send(HELLO)
        assert await caller.want(*desk.pieces) == (False, 0b111, 0)
        assert (await caller.get(desk.pieces[2])).payload == stored(desk.store, desk.pieces[2])
        assert isinstance((await caller.get(desk.pieces[5])).message, PieceMissing)


async def test_bytes_are_sent_as_they_are_until_somebody_complains(desk: Desk) -> None:
    """The puller hashes; the server does not. Told of a wrong piece it looks, takes the stage out
    of service, and says to everybody that the piece is gone."""
    numbers = [number for number, _ in enumerate(desk.pieces)]
    weights = next(file for file in desk.manifest.files if file.name.endswith(".bin"))
    bad = weights.pieces[2]
    flip(desk.weights, 2 * 10_000 + 7)
    one, two = await desk.caller(), await desk.caller()
    everything = sum(1 << number for number in numbers)
    assert await one.want(*desk.pieces) == await two.want(*desk.pieces) == (False, everything, 0)
    answer = await one.get(bad)
    assert answer.message == PieceData(bad)
    await one.link.send(PieceWrong(bad))
    received = await one.link.receive()
    while isinstance(received.message, PiecesHeld):
        received = await one.link.receive()
    assert isinstance(received.message, PieceMissing)
    assert received.message.digest == bad
    left = everything & ~(1 << desk.pieces.index(bad))
    await two.until(False, left, 0)
    assert desk.store.stage_folder(desk.manifest.digest) is None
    assert isinstance((await two.get(bad)).message, PieceMissing)
    desk.exchange.incoming.stored(bad)  # it was fetched again
    await two.until(False, everything, 0)


async def test_a_complaint_about_a_good_piece_changes_nothing(desk: Desk) -> None:
    caller = await desk.caller()
    before = await caller.want(*desk.pieces)
    await caller.link.send(PieceWrong(desk.pieces[1]))
    await caller.link.send(PieceWrong(Digest("b" * 64)))
    assert await caller.told() == before
    assert (await caller.get(desk.pieces[1])).message == PieceData(desk.pieces[1])
    assert desk.store.stage_folder(desk.manifest.digest) is not None


async def test_another_version_is_refused_by_name(desk: Desk) -> None:
    caller = await desk.caller(greet=False)
    await caller.link.send(TransferHello(1))
    with pytest.raises(VersionMismatch, match=r"version 1, this one in 2"):
        await caller.serving


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([PieceRequest(Digest("b" * 64))], "instead of a TransferHello"),
        ([HELLO, PieceMissing(Digest("b" * 64), "?")], "from a puller"),
        ([HELLO, HELLO], "TransferHello from a puller"),
        ([HELLO, PiecesWanted(Digest("b" * 64)), PiecesWanted(Digest("b" * 64))], "PiecesWanted"),
        ([HELLO, Goodbye("of another channel")], "not expected here"),
    ],
)
async def test_anything_else_is_a_violation(desk: Desk, messages: list[object], why: str) -> None:
    caller = await desk.caller(greet=False)
    for message in messages:
        await caller.link.send(message)
    with pytest.raises(ProtocolViolation, match=why):
        await caller.serving


async def test_a_list_that_is_none_is_a_violation(desk: Desk) -> None:
    caller = await desk.caller()
    await caller.link.send(PiecesWanted(Digest("b" * 64)), b"\1" * 31)
    with pytest.raises(ProtocolViolation, match="whole digests"):
        await caller.serving


async def test_a_link_that_ends_ends_quietly(desk: Desk) -> None:
    caller = await desk.caller()
    await caller.want(*desk.pieces)
    for digest in desk.pieces:
        await caller.link.send(PieceRequest(digest))
    await caller.link.close()
    await caller.serving
