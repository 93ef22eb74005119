"""Starts a term when this PC is elected, ends it when it is not, and tells the others of it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from meshinfer.core.ids import Epoch
from meshinfer.errors import PeerLost
from meshinfer.node.door import NodeDoor
from meshinfer.node.leader_term import LeaderTerm
from meshinfer.node.term_tools import FleetMesh
from meshinfer.wire.forward import FleetReport

REPORT_EVERY_S = 1.0

log = logging.getLogger(__name__)


class Leadership:
    """`make_term` wires a term for an epoch; the door answers from it while it lasts."""

    def __init__(
        self, mesh: FleetMesh, door: NodeDoor, make_term: Callable[[Epoch], LeaderTerm]
    ) -> None:
        self._mesh = mesh
        self._door = door
        self._make_term = make_term
        self._epoch: Epoch | None = None
        self._term: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Until cancelled; a running term is then cancelled and awaited. A bug in a term is
        raised here."""
        try:
            async with asyncio.TaskGroup() as tasks:
                async for view in self._mesh.watch():
                    elected = view.epoch if view.leads else None
                    if elected != self._epoch:
                        await self._end()
                        self._epoch = elected
                        if elected is not None:
                            self._term = tasks.create_task(self._lead(elected))
        finally:
            await self._end()

    async def _end(self) -> None:
        term, self._term = self._term, None
        if term is not None:
            term.cancel()
            await asyncio.wait([term])

    async def _lead(self, epoch: Epoch) -> None:
        log.info("this PC leads, epoch %s", epoch)
        term = self._make_term(epoch)
        self._door.term = term
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(term.run())
                tasks.create_task(self._report(term))
        finally:
            self._door.term = None
            log.info("this PC does not lead any more, epoch %s", epoch)

    async def _report(self, term: LeaderTerm) -> None:
        """What the board says, to every member: on changes, and once a second."""
        while True:
            term.board.changed.clear()
            report = FleetReport(term.board.text())
            view = self._mesh.view
            for member in view.members:
                if member.node != view.me:
                    with contextlib.suppress(PeerLost):
                        await self._mesh.send(member.node, report)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REPORT_EVERY_S):
                    await term.board.changed.wait()
