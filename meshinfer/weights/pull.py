"""What is still missing of one stage, shared by all sources that are asked for it.

Lives on the event loop. Called by the transfer and its sources.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any

from meshinfer.core.ids import Digest
from meshinfer.errors import MeshInferError
from meshinfer.weights.partial_stage import PartialStage

Tell = Callable[[int, int], None]
"""Hears (done, total) bytes, on the event loop."""


class Pull:
    """`reason` is why the last source was given up; once `hopeless`, no piece will come."""

    def __init__(self, partial: PartialStage, progress: Tell, executor: Executor) -> None:
        self._partial = partial
        self._progress = progress
        self._executor = executor
        self._wanted: deque[Digest] = deque(partial.missing)
        self._left = len(self._wanted)
        self._done_bytes = partial.done_bytes
        self._changed = asyncio.Event()
        self._ended = asyncio.Event()
        self._sources = 0
        self._idle = 0
        self.reason: MeshInferError | None = None
        self.hopeless = False
        if self.finished:
            self._ended.set()
        self._tell()

    @property
    def finished(self) -> bool:
        return self._left == 0

    @property
    def over(self) -> bool:
        """Complete, or never going to be."""
        return self.finished or self.hopeless

    def expect(self, sources: int) -> None:
        """That many sources take part."""
        self._sources = sources

    def take(self, lacking: set[Digest]) -> Digest | None:
        """The next piece to ask for, none of `lacking`; None when there is none now."""
        for _ in range(len(self._wanted)):
            digest = self._wanted.popleft()
            if digest not in lacking:
                return digest
            self._wanted.append(digest)
        return None

    def give_back(self, *digests: Digest) -> None:
        """Pieces that were taken and did not come: they are asked for first."""
        self._wanted.extendleft(reversed(digests))
        if digests:
            self._wake()

    def store(self, digest: Digest, payload: memoryview) -> asyncio.Future[int]:
        """Hash and keep a piece, off the loop."""
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(self._executor, self._partial.write, digest, payload)

    def stored(self, size: int) -> None:
        """A taken piece is in its place."""
        self._left -= 1
        self._done_bytes += size
        self._tell()
        if self.finished:
            self._end()

    def give_up(self, reason: MeshInferError) -> None:
        """A source leaves; what it lacked may now be lacked by all who are left."""
        self.reason = reason
        self._sources -= 1
        self._check_hope()

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
        """Until there may be something to take, the stage is complete, or `hopeless` holds."""
        changed = self._changed
        self._idle += 1
        try:
            self._check_hope()
            await changed.wait()
        finally:
            if changed is self._changed:  # cancelled: nobody woke it
                self._idle -= 1

    def _check_hope(self) -> None:
        """When all sources that are left wait for each other, no piece will come any more."""
        if self._idle >= self._sources and not self.finished:
            self.hopeless = True
            self._end()

    def _end(self) -> None:
        self._ended.set()
        self._wake()

    def _wake(self) -> None:
        """Whoever waits is busy from now on, although it runs only later: a source that leaves or
        waits before that must not count it as waiting."""
        self._idle = 0
        self._changed.set()
        self._changed = asyncio.Event()

    def _tell(self) -> None:
        self._progress(self._done_bytes, self._partial.total_bytes)
