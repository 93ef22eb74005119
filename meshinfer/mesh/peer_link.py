"""One established link: its reader, its writer, and how both end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from meshinfer.core.ids import NodeId, short
from meshinfer.errors import MeshInferError, PeerLost, ProtocolViolation
from meshinfer.link.base import Link, Received
from meshinfer.mesh.outbox import Outbox

log = logging.getLogger(__name__)


class PeerLink:
    """`number` is this PC's name of the link. `run` lasts as long as the link does."""

    def __init__(self, number: int, link: Link, close_s: float) -> None:
        self.number = number
        self.outbox = Outbox()
        self._link = link
        self._close_s = close_s
        self._reason = "this PC ends the link"
        self._writer: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._aborted = False

    @property
    def peer(self) -> NodeId:
        return self._link.peer

    def finish(self, reason: str, last: object | None = None) -> None:
        """Write what is queued, then `last`, then close; after `close_s` close anyway."""
        if self._timer is not None:
            return
        self._reason = reason
        self.outbox.end(last)
        self._timer = asyncio.get_running_loop().call_later(self._close_s, self._abort)

    async def run(self, take: Callable[[PeerLink, Received], Awaitable[None]]) -> None:
        """Hand every message to `take` until the link ends.

        Raises PeerLost when the other side ended it, ProtocolViolation when it broke a rule.
        """
        reader = asyncio.create_task(self._read(take))
        self._writer = asyncio.create_task(self._write())
        if self._aborted:
            self._writer.cancel()
        try:
            await asyncio.wait({reader, self._writer}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if self._timer is not None:
                self._timer.cancel()
            self.outbox.close()
            reader.cancel()
            self._writer.cancel()
            await asyncio.wait({reader, self._writer})
            await self._link.close(self._reason)
        for task in (reader, self._writer):
            error = None if task.cancelled() else task.exception()
            if error is not None:
                raise error

    def _abort(self) -> None:
        self._aborted = True
        if self._writer is not None:
            self._writer.cancel()

    async def _read(self, take: Callable[[PeerLink, Received], Awaitable[None]]) -> None:
        while True:
            await take(self, await self._link.receive())

    async def _write(self) -> None:
        while (item := await self.outbox.take()) is not None:
            message, payload = item
            try:
                await self._link.send(message, payload)
            except ProtocolViolation as error:  # raised before a byte is written: ours, too large
                name = type(message).__name__
                log.error("%s for %s is not sent: %s", name, short(self.peer), error)
            except PeerLost:
                return
            except MeshInferError as error:
                raise PeerLost(error.cause, error.remedy) from error
