"""One PC that is asked for pieces: dialled, asked, dialled again, and given up when it is no use.

Called by the transfer; shares what is missing with the other sources through the Pull.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from meshinfer.core.ids import Digest, NodeId, short
from meshinfer.core.together import together
from meshinfer.errors import (
    DiskFull,
    MeshInferError,
    ProtocolViolation,
    ShardCorrupt,
    TimedOut,
)
from meshinfer.link.base import Link, Received
from meshinfer.weights.exchange import BadPeer
from meshinfer.weights.pace import Pace
from meshinfer.weights.patience import Patience
from meshinfer.weights.piece_choice import Standing
from meshinfer.weights.pull import Pull
from meshinfer.weights.reputation import Reputation
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

Dial = Callable[[], Awaitable[Link]]
"""A transfer link to the PC, on which nothing was said yet; raises MeshInferError."""


@dataclass(frozen=True, slots=True)
class Source:
    """A PC that may hold pieces. A `spare` one (the leader, from which everybody starts) is asked
    for what nobody else can give."""

    dial: Dial
    spare: bool = False


class PieceSource:
    """`run()` returns when the stage is complete or this source is given up. Raises only what ends
    the whole transfer, such as DiskFull. Implements pull.Account."""

    def __init__(
        self,
        source: Source,
        pull: Pull,
        patience: Patience,
        sleep: Callable[[float], Awaitable[None]],
        on_bad_peer: BadPeer,
    ) -> None:
        self._source = source
        self._pull = pull
        self._patience = patience
        self._sleep = sleep
        self._reputation = Reputation(patience, on_bad_peer)
        self._pace = Pace(patience.window)
        self._held = 0
        self._coming = 0
        self._asked: dict[int, float] = {}  # piece -> when; in the order of the requests
        self._writes: deque[tuple[int, asyncio.Future[int]]] = deque()
        self._written = asyncio.Event()
        self._slots = asyncio.Semaphore(patience.writes)
        self._reports: list[Digest] = []  # pieces that came wrong, to be told
        self._link: Link | None = None
        self._peer = NodeId("?")
        self._suspect = 0  # reported as wrong; it looks at its copies
        self._has_answered = False
        self.is_growing = False

    @property
    def standing(self) -> Standing:
        return Standing(self._held, self._coming, self._has_room(), self._source.spare)

    @property
    def is_known(self) -> bool:
        return self._has_answered and not self._suspect

    @property
    def asked(self) -> int:
        return sum(1 << number for number in self._asked)

    async def run(self) -> None:
        while not self._pull.over:
            try:
                await self._visit()
            except DiskFull:
                raise
            except MeshInferError as error:
                reason = self._reputation.failed(self._peer, error)
                if reason is not None:
                    self._pull.give_up(self, reason)
                    return
                if not self._pull.over:
                    await self._pull.unless_over(self._rest())

    def _has_room(self) -> bool:
        return self._has_answered and len(self._asked) < self._pace.window

    async def _visit(self) -> None:
        """One link, from dialling to its end."""
        try:
            await self._pull.unless_over(self._connect())
            if self._link is not None:
                await self._pull.unless_over(self._converse(self._link))
        finally:
            try:
                await self._leave()
            finally:
                await self._hang_up()

    async def _connect(self) -> None:
        self._link = await self._source.dial()
        self._peer = self._link.peer

    async def _hang_up(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.close("the transfer is over")

    async def _rest(self) -> None:
        await self._sleep(self._patience.wait_s(self._reputation.failures))

    async def _converse(self, link: Link) -> None:
        await link.send(TransferHello(TRANSFER_VERSION))
        loop = asyncio.get_running_loop()
        wanted = await loop.run_in_executor(
            self._pull.executor, pack_digests, self._pull.pieces
        )  # a long list
        await link.send(PiecesWanted(self._pull.stage), wanted)
        await together(self._ask_all(link), self._receive_all(link), self._settle_all())

    async def _ask_all(self, link: Link) -> None:
        while not self._pull.over:
            while self._reports:
                await link.send(PieceWrong(self._reports.pop()))
            number = self._pull.take(self) if self._has_room() else None
            if number is None:
                await self._pull.wait()
                self._check_asked()
                continue
            now = self._now()
            self._asked[number] = now
            self._pace.asked(now)
            await link.send(PieceRequest(self._pull.pieces[number]))

    def _check_asked(self) -> None:
        oldest = next(iter(self._asked.values()), self._now())
        if self._now() - oldest > self._patience.piece_s:
            raise TimedOut(
                f"PC {short(self._peer)} sent no piece for {self._patience.piece_s:g} s."
            )

    async def _receive_all(self, link: Link) -> None:
        while True:
            await self._take(await self._next(link))

    async def _next(self, link: Link) -> Received:
        try:
            async with asyncio.timeout(self._patience.stall_s):
                return await link.receive()
        except TimeoutError as error:
            raise TimedOut(
                f"PC {short(self._peer)} sent nothing for {self._patience.stall_s:g} s."
            ) from error

    async def _take(self, received: Received) -> None:
        match received.message:
            case PieceData(digest) if self._was_asked(digest):
                await self._slots.acquire()  # when cancelled here, the piece counts as not come
                number = self._answered(digest)
                self._writes.append((number, self._pull.store(number, received.payload)))
                self._written.set()
            case PieceMissing(digest) if digest in self._pull.numbers:
                self._lacks(self._pull.numbers[digest])
            case PiecesHeld(growing):
                self._hear(growing, received.payload)
            case other:
                raise ProtocolViolation(
                    f"PC {short(self._peer)} sent a {type(other).__name__} that was not asked for."
                )

    def _was_asked(self, digest: Digest) -> bool:
        return self._pull.numbers.get(digest) in self._asked

    def _answered(self, digest: Digest) -> int:
        number = self._pull.numbers[digest]
        del self._asked[number]
        self._pace.arrived(self._now(), len(self._asked))
        self._pull.wake()
        return number

    def _lacks(self, number: int) -> None:
        """It was asked for the piece, or has looked at a copy that came out wrong."""
        self._held &= ~(1 << number)
        self._suspect &= ~(1 << number)
        if number in self._asked:
            self._pull.give_back(self._answered(self._pull.pieces[number]))
        self._pull.wake()

    def _hear(self, growing: bool, payload: memoryview) -> None:
        held, self._coming = unpack_bitmaps(len(self._pull.pieces), payload)
        has_more = bool(held & ~self._held) or not self._has_answered
        self.is_growing = growing
        self._has_answered = True
        self._held = held
        self._suspect &= ~held
        if has_more:
            self._pull.moved()

    async def _settle_all(self) -> None:
        """Learn what became of each piece. Raises ShardCorrupt once too many were wrong."""
        while True:
            while not self._writes:
                self._written.clear()
                await self._written.wait()
            await asyncio.wait([self._writes[0][1]])
            number, write = self._writes.popleft()
            self._slots.release()
            if not self._count(number, write) and self._reputation.is_liar:
                raise self._reputation.sentence(self._peer)

    def _count(self, number: int, write: asyncio.Future[int]) -> bool:
        """Whether the piece was right and is kept. Raises DiskFull."""
        try:
            size = write.result()
        except ShardCorrupt as error:
            self._held &= ~(1 << number)  # asked of another, until this one has looked at its copy
            self._suspect |= 1 << number
            self._reputation.lied(self._peer, error.cause)
            self._reports.append(self._pull.pieces[number])
            self._pull.give_back(number)
            return False
        self._reputation.gave()
        self._pull.stored(number, size)
        return True

    async def _leave(self) -> None:
        """What was asked and did not come goes back. Nobody may write once the partial stage is
        closed, so running writes are awaited. Raises DiskFull."""
        self._has_answered = self.is_growing = False
        self._held = self._coming = 0
        self._pace.cut()
        self._pull.give_back(*self._asked)
        self._asked.clear()
        failure: Exception | None = None
        if self._writes:
            await asyncio.wait([write for _, write in self._writes])
        while self._writes:  # all of them, so that no failed write is left unread
            number, write = self._writes.popleft()
            self._slots.release()
            try:
                if not write.cancelled():
                    self._count(number, write)
            except (DiskFull, OSError) as error:
                failure = error
        self._reports.clear()
        self._suspect = 0
        if failure is not None:
            raise failure

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
