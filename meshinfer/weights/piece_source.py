"""One PC that is asked for pieces: dialled, asked, dialled again, and given up when it is no use.

Called by the transfer; shares what is missing with the other sources through the Pull.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from meshinfer.core.ids import Digest, short
from meshinfer.errors import (
    DiskFull,
    MeshInferError,
    ProtocolViolation,
    ShardCorrupt,
    TimedOut,
    TrustRefused,
    VersionMismatch,
)
from meshinfer.link.base import Link, Received
from meshinfer.weights.pull import Pull
from meshinfer.wire.transfer import PieceData, PieceMissing, PieceRequest

Source = Callable[[], Awaitable[Link]]
"""Dials a PC that may hold the pieces and says TransferHello; raises MeshInferError."""

_HOPELESS = (ShardCorrupt, TrustRefused, VersionMismatch)


@dataclass(frozen=True, slots=True)
class Patience:
    """When a source is asked again, and when it is not."""

    window: int = 8  # pieces in flight on a link: 8 MiB hide the way there and back
    writes: int = 4  # pieces that wait for the disk before the next is received
    stall_s: float = 15.0  # without a piece: as good as cut
    wrong_answers: int = 3
    failures: int = 6  # in a row, without a piece between them
    first_wait_s: float = 0.5
    longest_wait_s: float = 8.0

    def wait_s(self, failures: int) -> float:
        return min(self.longest_wait_s, self.first_wait_s * 2.0 ** min(failures - 1, 16))


class _Exhausted(Exception):
    """The source answers, but has nothing more of what is missing."""


class PieceSource:
    """`run()` returns when the stage is complete or this source is given up. Raises only what ends
    the whole transfer, such as DiskFull."""

    def __init__(
        self,
        dial: Source,
        pull: Pull,
        patience: Patience,
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self._dial = dial
        self._pull = pull
        self._patience = patience
        self._sleep = sleep
        self._lacking: set[Digest] = set()
        self._asked: dict[Digest, None] = {}  # in the order of the requests
        self._writes: deque[tuple[Digest, asyncio.Future[int]]] = deque()
        self._link: Link | None = None
        self._peer = "?"
        self._wrong = 0
        self._failures = 0

    async def run(self) -> None:
        while not self._pull.over:
            try:
                await self._visit()
            except DiskFull:
                raise
            except MeshInferError as error:
                self._failures += 1
                reason = self._why_give_up(error)
                if reason is not None:
                    self._pull.give_up(reason)
                    return
                await self._pull.unless_over(self._rest())

    def _why_give_up(self, error: MeshInferError) -> MeshInferError | None:
        """None while it is worth another try."""
        if isinstance(error, ProtocolViolation):
            self._wrong += 1
            if self._wrong >= self._patience.wrong_answers:
                return error
        if self._wrong >= self._patience.wrong_answers:
            return self._liar()
        if isinstance(error, _HOPELESS) or self._failures >= self._patience.failures:
            return error
        return None

    def _liar(self) -> ShardCorrupt:
        return ShardCorrupt(
            f"PC {self._peer} sent {self._wrong} wrong answers instead of pieces.",
            "Have that PC's disk and memory checked.",
        )

    async def _visit(self) -> None:
        """One link, from dialling to its end."""
        try:
            await self._pull.unless_over(self._connect())
            if self._link is not None:
                await self._converse(self._link)
        finally:
            try:
                await self._leave()
            finally:
                await self._hang_up()

    async def _connect(self) -> None:
        self._link = await self._dial()
        self._peer = short(self._link.peer)

    async def _hang_up(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.close("the transfer is over")

    async def _rest(self) -> None:
        await self._sleep(self._patience.wait_s(self._failures))

    async def _converse(self, link: Link) -> None:
        while not self._pull.over:
            await self._ask(link)
            if self._asked:
                self._take(await self._next(link))
                while self._writes and self._is_due():
                    await self._settle()
            elif self._writes:
                await self._settle()
            else:
                await self._pull.wait()

    def _is_due(self) -> bool:
        """Whether the oldest write is done, or too many wait for the disk."""
        return self._writes[0][1].done() or len(self._writes) > self._patience.writes

    async def _ask(self, link: Link) -> None:
        while len(self._asked) < self._patience.window:
            digest = self._pull.take(self._lacking)
            if digest is None:
                return
            self._asked[digest] = None
            await link.send(PieceRequest(digest))

    async def _next(self, link: Link) -> Received:
        try:
            async with asyncio.timeout(self._patience.stall_s):
                return await link.receive()
        except TimeoutError as error:
            raise TimedOut(
                f"PC {self._peer} sent nothing for {self._patience.stall_s:g} s."
            ) from error

    def _take(self, received: Received) -> None:
        match received.message:
            case PieceData(digest) if digest in self._asked:
                del self._asked[digest]
                self._writes.append((digest, self._pull.store(digest, received.payload)))
            case PieceMissing(digest) if digest in self._asked:
                del self._asked[digest]
                self._lacking.add(digest)
                self._pull.give_back(digest)
            case other:
                raise ProtocolViolation(
                    f"PC {self._peer} sent a {type(other).__name__} that was not asked for."
                )

    async def _settle(self) -> None:
        """Learn what became of the oldest piece. Raises ShardCorrupt once too many were wrong."""
        digest, write = self._writes[0]
        await asyncio.wait([write])
        self._writes.popleft()
        if not self._count(digest, write) and self._wrong >= self._patience.wrong_answers:
            raise self._liar()

    def _count(self, digest: Digest, write: asyncio.Future[int]) -> bool:
        """Whether the piece was right and is kept. Raises DiskFull."""
        try:
            size = write.result()
        except ShardCorrupt:
            self._wrong += 1
            self._pull.give_back(digest)
            return False
        self._failures = 0
        self._pull.stored(size)
        return True

    async def _leave(self) -> None:
        """What was asked and did not come goes back. Nobody may write once the partial stage is
        closed, so running writes are awaited. Raises DiskFull."""
        self._pull.give_back(*self._asked)
        self._asked.clear()
        if self._writes:
            await asyncio.wait([write for _, write in self._writes])
        failure: Exception | None = None
        while self._writes:  # all of them, so that no failed write is left unread
            digest, write = self._writes.popleft()
            try:
                if not write.cancelled():
                    self._count(digest, write)
            except (DiskFull, OSError) as error:
                failure = error
        if failure is not None:
            raise failure
