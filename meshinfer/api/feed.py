"""The pieces of one answer, taken from the door by a task of its own.

So that a wait can be bounded (keep-alives) and ended from outside (shutdown) without cutting the
door's iterator in the middle of a step.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import TracebackType
from typing import Self

from meshinfer.api.answer import Piece
from meshinfer.api.crash import crash_report
from meshinfer.errors import MeshInferError

log = logging.getLogger(__name__)


class AnswerFeed:
    """Use as a context: leaving it cancels the request and waits until the door let go of it.

    The queue has no bound of its own: an answer is at most a context long, and back-pressure here
    would only move it into the inbox's queue.
    """

    def __init__(self, pieces: AsyncGenerator[Piece, None]) -> None:
        self._pieces = pieces
        self._arrived: asyncio.Queue[Piece | MeshInferError] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._pump())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])

    async def next(self, patience_s: float | None) -> Piece:
        """The next piece. Raises the door's error, TimeoutError after `patience_s` of silence."""
        async with asyncio.timeout(patience_s):
            arrived = await self._arrived.get()
        if isinstance(arrived, MeshInferError):
            raise arrived
        return arrived

    def fail(self, error: MeshInferError) -> None:
        """Cancel the request; whoever waits meets `error` after what has arrived already."""
        assert self._task is not None
        self._task.cancel()
        self._arrived.put_nowait(error)

    async def _pump(self) -> None:
        try:
            async with aclosing(self._pieces):
                async for piece in self._pieces:
                    self._arrived.put_nowait(piece)
        except MeshInferError as error:
            self._arrived.put_nowait(error)
        except Exception as error:
            # outermost frame of the task: a bug behind the door ends this answer, not the agent
            log.error("an answer crashed: %s", crash_report(error))
            self._arrived.put_nowait(
                MeshInferError("An internal error.", "The log of this PC has the details.")
            )
