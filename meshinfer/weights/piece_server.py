"""Serving pieces: a PC answers by digest with whatever lies in its store, also of a stage that it
is still getting itself, and says what it holds whenever that changes.

The bytes are not hashed here: the puller does, and whoever gets wrong ones says so. Then this PC
looks at its own copy, and takes it out of service if it is bad. Called by the node for each
transfer link.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from meshinfer.core.ids import Digest, short
from meshinfer.core.together import together
from meshinfer.errors import PeerLost, ProtocolViolation, ShardCorrupt, VersionMismatch
from meshinfer.link.base import Link
from meshinfer.weights.exchange import Exchange
from meshinfer.weights.incoming import Change
from meshinfer.weights.piece_bytes import fill, piece_digest
from meshinfer.weights.piece_choice import set_of
from meshinfer.weights.store import Store
from meshinfer.wire.transfer import (
    TRANSFER_VERSION,
    PieceData,
    PieceMissing,
    PieceRequest,
    PiecesHeld,
    PiecesWanted,
    PieceWrong,
    TransferHello,
    pack_bitmaps,
    unpack_digests,
)

READ_AHEAD = 4
"""Pieces that are read before the first of them is sent: that many MiB of memory a link."""

NEWS_EVERY_S = 0.02
LIFE_SIGN_S = 5.0
"""A puller takes 15 s of silence for a cut; a link whose turn to upload is far off is not silent.
The store is looked at again as well."""

_T = TypeVar("_T")
_Read = asyncio.Future[memoryview | None]
_log = logging.getLogger(__name__)


class PieceServer:
    """One for all transfer links of an agent."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._spoilt: set[Digest] = set()  # out of service until they are fetched again

    async def serve(self, link: Link) -> None:
        """Answer until the link ends. Raises ProtocolViolation for a peer that says what does not
        belong here, VersionMismatch for one that speaks another version."""
        try:
            await _Service(link, self._exchange, self._spoilt).run()
        except PeerLost:
            return


class _Service:
    """One link."""

    def __init__(self, link: Link, exchange: Exchange, spoilt: set[Digest]) -> None:
        self._link = link
        self._exchange = exchange
        self._spoilt = spoilt
        self._reads: asyncio.Queue[tuple[Digest, _Read]] = asyncio.Queue(READ_AHEAD)
        self._buffers: list[bytearray] = []
        self._writing = asyncio.Lock()  # a link has one writer
        self._wanted: dict[Digest, int] | None = None  # piece -> its number
        self._told_what = asyncio.Event()
        self._news = asyncio.Event()
        self._held = 0
        self._coming = 0
        self._lost = 0  # since the store was last looked at

    async def run(self) -> None:
        try:
            with self._exchange.incoming.watch(self._note):
                await self._greet()
                await together(self._take_all(), self._answer_all(), self._announce())
        finally:
            while not self._reads.empty():  # nobody will await these reads
                self._reads.get_nowait()[1].cancel()

    async def _greet(self) -> None:
        match (await self._link.receive()).message:
            case TransferHello(version) if version == TRANSFER_VERSION:
                return
            case TransferHello(version):
                raise VersionMismatch(
                    f"The other PC transfers stages in version {version}, this one in "
                    f"{TRANSFER_VERSION}.",
                    "Update the older PC.",
                )
            case other:
                raise ProtocolViolation(f"{type(other).__name__} instead of a TransferHello")

    async def _take_all(self) -> None:
        while True:
            received = await self._link.receive()
            match received.message:
                case PieceRequest(digest):
                    # A full queue is back-pressure: the next request stays in the socket.
                    await self._reads.put((digest, self._read(digest)))
                case PiecesWanted(stage) if self._wanted is None:
                    self._wanted = wanted = await self._run(_numbers, received.payload)
                    who = short(self._link.peer)
                    _log.info("PC %s pulls %d pieces of stage %s", who, len(wanted), stage[:12])
                    self._told_what.set()
                case PieceWrong(digest):
                    await self._examine(digest)
                case other:
                    raise ProtocolViolation(f"{type(other).__name__} from a puller")

    def _read(self, digest: Digest) -> _Read:
        loop = asyncio.get_running_loop()
        if digest in self._spoilt:
            missing: _Read = loop.create_future()
            missing.set_result(None)
            return missing
        buffer = self._buffers.pop() if self._buffers else bytearray()
        executor, store = self._exchange.executor, self._exchange.store
        return loop.run_in_executor(executor, _read_piece, store, digest, buffer)

    async def _run(self, work: Callable[..., _T], *arguments: Any) -> _T:
        """On a thread: lists of pieces may be long."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._exchange.executor, work, *arguments)

    async def _answer_all(self) -> None:
        while True:
            digest, read = await self._reads.get()
            data = await read
            if data is None:
                self._note(Change.LOST, digest)
                await self._send(PieceMissing(digest, "not in this PC's store"))
                continue
            await self._exchange.upload.turn(data.nbytes)
            await self._send(PieceData(digest), data)
            buffer = data.obj
            data.release()
            assert isinstance(buffer, bytearray)
            self._buffers.append(buffer)

    async def _send(self, message: object, payload: bytes | memoryview = b"") -> None:
        async with self._writing:
            await self._link.send(message, payload)

    async def _announce(self) -> None:
        """What is here and what is coming: at once, after every change, and as a sign of life."""
        await self._told_what.wait()
        assert self._wanted is not None
        for digest in self._exchange.incoming.coming & self._wanted.keys():
            self._coming |= 1 << self._wanted[digest]
        await self._look_at_store(self._wanted)
        while True:
            self._news.clear()
            await self._tell(self._wanted)
            try:
                async with asyncio.timeout(LIFE_SIGN_S):
                    await self._news.wait()
            except TimeoutError:
                await self._look_at_store(self._wanted)
            else:
                await asyncio.sleep(NEWS_EVERY_S)

    async def _tell(self, wanted: dict[Digest, int]) -> None:
        growing = self._exchange.incoming.grows(wanted)
        bitmaps = pack_bitmaps(len(wanted), self._held, self._coming & ~self._held)
        await self._send(PiecesHeld(growing), bitmaps)

    async def _look_at_store(self, wanted: dict[Digest, int]) -> None:
        before, self._lost = self._held, 0
        spoilt = frozenset(self._spoilt)
        found = await self._run(_held, self._exchange.store, wanted, spoilt)
        arrived = self._held & ~before
        self._held = (found | arrived) & ~self._lost

    def _note(self, change: Change, digest: Digest) -> None:
        """Hear what pulls of this PC do."""
        if change is Change.STORED:
            self._spoilt.discard(digest)
        number = self._wanted.get(digest) if self._wanted else None
        if number is None and change is not Change.PULLS:
            return
        bit = 1 << number if number is not None else 0
        match change:
            case Change.ASKED:
                self._coming |= bit
            case Change.DROPPED:
                self._coming &= ~bit
            case Change.STORED:
                self._coming &= ~bit
                self._held |= bit
                self._lost &= ~bit
            case Change.LOST:
                self._held &= ~bit
                self._lost |= bit
        self._news.set()

    async def _examine(self, digest: Digest) -> None:
        """Look at a piece that came out wrong at the other side."""
        if not await self._run(_check_piece, self._exchange.store, digest):
            _log.warning("piece %s is damaged on this PC's disk", digest[:12])
            self._spoilt.add(digest)
            self._exchange.incoming.lost(digest)
            await self._send(PieceMissing(digest, "it was damaged on this PC's disk"))
        self._news.set()


def _read_piece(store: Store, digest: Digest, buffer: bytearray) -> memoryview | None:
    """The piece in (a part of) `buffer`; None when it is not here."""
    for _ in range(2):  # a stage that is published just then lies elsewhere in the next moment
        place = store.piece(digest)
        if place is None:
            return None
        if len(buffer) < place.length:
            buffer.extend(bytes(place.length - len(buffer)))
        data = memoryview(buffer)[: place.length]
        with contextlib.suppress(OSError), place.path.open("rb", buffering=0) as file:
            file.seek(place.offset)
            if fill(file, data):
                return data
        data.release()
    return None


def _check_piece(store: Store, digest: Digest) -> bool:
    """Whether this PC's copy is right. A stage that holds a wrong one becomes a partial stage."""
    data = _read_piece(store, digest, bytearray())
    if data is None or piece_digest(data).hex() == digest:
        return True
    place = store.piece(digest)
    if place is not None and store.stage_folder(Digest(place.path.parent.name)) is not None:
        with contextlib.suppress(ShardCorrupt):
            store.verify_stage(Digest(place.path.parent.name))
    return False


def _numbers(payload: memoryview) -> dict[Digest, int]:
    return {digest: number for number, digest in enumerate(unpack_digests(payload))}


def _held(store: Store, wanted: dict[Digest, int], but: frozenset[Digest]) -> int:
    return set_of(wanted[digest] for digest in store.holds(wanted) - but)
