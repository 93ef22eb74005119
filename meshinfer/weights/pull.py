"""What is still missing of one stage, shared by all sources that are asked for it.

Lives on the event loop. Called by the transfer and its sources; `weights.piece_choice` decides
which piece is asked of whom.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, Protocol

from meshinfer.core.ids import Digest
from meshinfer.errors import MeshInferError
from meshinfer.weights.exchange import Exchange
from meshinfer.weights.partial_stage import PartialStage
from meshinfer.weights.piece_choice import Standing, choose

Tell = Callable[[int, int], None]
"""Hears (done, total) bytes, on the event loop."""

LATE_S = 5.0
"""Without anything new for so long, a piece is asked of whoever has it, once more if need be."""

LONELY_S = 30.0
"""How long to wait for PCs that pull the same stage and hold nothing that is missing either."""

_TICK_S = 0.5


class Account(Protocol):
    """What a pull sees of one source."""

    @property
    def standing(self) -> Standing: ...

    @property
    def is_known(self) -> bool:
        """Whether it is connected and has said what it holds."""
        ...

    @property
    def is_growing(self) -> bool: ...

    @property
    def asked(self) -> int:
        """The set of pieces in flight on its link."""
        ...


class Pull:
    """`reason` is why the last source was given up; once `hopeless`, no piece will come. Pieces
    have numbers: their places in `pieces`."""

    def __init__(self, partial: PartialStage, progress: Tell, exchange: Exchange) -> None:
        self._partial = partial
        self._progress = progress
        self._exchange = exchange
        self.stage = partial.manifest.digest
        self.pieces: tuple[Digest, ...] = partial.missing
        self.numbers = {digest: number for number, digest in enumerate(self.pieces)}
        self._wanted = (1 << len(self.pieces)) - 1
        self._missing = self._wanted
        self._in_flight: Counter[int] = Counter()
        self._done_bytes = partial.done_bytes
        self._accounts: list[Account] = []
        self._changed = asyncio.Event()
        self._ended = asyncio.Event()
        self._moved_at = self._now()
        self.reason: MeshInferError | None = None
        self.hopeless = False
        if self.finished:
            self._ended.set()
        self._tell()

    @property
    def executor(self) -> Executor:
        return self._exchange.executor

    @property
    def finished(self) -> bool:
        return not self._missing

    @property
    def over(self) -> bool:
        """Complete, or never going to be."""
        return self.finished or self.hopeless

    def enlist(self, account: Account) -> None:
        """A source takes part."""
        self._accounts.append(account)

    def give_up(self, account: Account, reason: MeshInferError) -> None:
        """A source leaves."""
        self.reason = reason
        self._accounts.remove(account)
        self._check_hope()
        self.wake()

    def take(self, account: Account) -> int | None:
        """The next piece to ask of a source that has room; None when there is none now."""
        others = [one.standing for one in self._accounts if one is not account]
        mine, random = account.standing, self._exchange.random
        patient = not self._is_late()
        number = choose(self._wanted, mine, others, random, patient)
        if number is None and not patient:
            again = self._asked_once() & ~account.asked
            number = choose(again, mine, others, random, patient=False)
        if number is None:
            return None
        self._wanted &= ~(1 << number)
        self._in_flight[number] += 1
        self._exchange.incoming.asked(self.pieces[number])
        return number

    def give_back(self, *numbers: int) -> None:
        """Pieces that were taken and did not come."""
        for number in numbers:
            self._in_flight[number] -= 1
            if self._in_flight[number] == 0:
                del self._in_flight[number]
                if self._missing >> number & 1:
                    self._wanted |= 1 << number
                    self._exchange.incoming.dropped(self.pieces[number])
        if numbers:
            self.wake()

    def is_missing(self, number: int) -> bool:
        return bool(self._missing >> number & 1)

    def store(self, number: int, payload: memoryview) -> asyncio.Future[int]:
        """Hash and keep a piece, off the loop."""
        loop = asyncio.get_running_loop()
        write = self._partial.write
        return loop.run_in_executor(self.executor, write, self.pieces[number], payload)

    def stored(self, number: int, size: int) -> None:
        """A taken piece is in its place."""
        self._in_flight[number] -= 1
        if self._in_flight[number] == 0:
            del self._in_flight[number]
        if not self.is_missing(number):
            return
        self._missing &= ~(1 << number)
        self._wanted &= ~(1 << number)
        self._done_bytes += size
        self._exchange.incoming.stored(self.pieces[number])
        self._moved_at = self._now()
        self._tell()
        if self.finished:
            self._end()

    def moved(self) -> None:
        """A source holds more than before, or is there again."""
        self._moved_at = self._now()
        self.wake()

    async def unless_over(self, work: Coroutine[Any, Any, None]) -> None:
        """Do `work`, but no longer than the pull lasts: a source that dials a dead PC, or waits to
        try again, must not hold up what the others have finished."""
        tasks = [asyncio.ensure_future(work), asyncio.ensure_future(self._ended.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        if not tasks[0].cancelled():
            tasks[0].result()

    async def wait(self) -> None:
        """Until there may be something to take: a change, or time for more urgency."""
        changed = self._changed
        self._check_hope()
        if self.over:
            return
        try:
            async with asyncio.timeout(_TICK_S):
                await changed.wait()
        except TimeoutError:
            return

    def _check_hope(self) -> None:
        """Hopeless: nothing is in flight and no source holds anything of what is missing, now that
        each has said what it holds. Those that pull themselves may get it, but are not waited for
        for ever: they may be waiting for us."""
        if self.over or self._in_flight:
            return
        if not all(one.is_known for one in self._accounts):
            return  # it answers or is given up, within its own bounds
        if any(self._wanted & one.standing.held for one in self._accounts):
            return
        may_grow = any(one.is_growing for one in self._accounts)
        if not may_grow or self._now() - self._moved_at >= LONELY_S:
            self.hopeless = True
            self._end()

    def _is_late(self) -> bool:
        return self._now() - self._moved_at >= LATE_S

    def _asked_once(self) -> int:
        """What has been in flight on one link alone: a second request is the last."""
        return sum(1 << number for number, links in self._in_flight.items() if links == 1)

    def _end(self) -> None:
        self._ended.set()
        self.wake()

    def wake(self) -> None:
        """Sources that wait look again."""
        self._changed.set()
        self._changed = asyncio.Event()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _tell(self) -> None:
        self._progress(self._done_bytes, self._partial.total_bytes)
