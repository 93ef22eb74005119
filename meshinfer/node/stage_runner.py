"""Running one stage: in a child process. Cancelling the run unloads the stage."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from meshinfer.core.together import together
from meshinfer.errors import from_code
from meshinfer.node.child import ChildProcess
from meshinfer.wire.child import StageGo, StageJob, StageNews
from meshinfer.wire.commit import StagePhase

Tell = Callable[[StageNews], None]


class StageRunner(Protocol):
    async def run(self, job: StageJob, go: asyncio.Event, tell: Tell) -> None:
        """Load and test the stage, tell `ready`, wait for `go`, join the ring, tell `serving`.

        Ends only by an error: StageFailed (it could not load or its process died), PeerLost (a
        neighbour of the ring is gone), or by cancellation, after which nothing of it is left.
        """
        ...


class StageProcesses:
    """Each stage in a process of its own: a driver that hangs or aborts takes nobody along."""

    def __init__(self) -> None:
        self._pids: set[int] = set()

    @property
    def pids(self) -> frozenset[int]:
        """Of the stage hosts that run now."""
        return frozenset(self._pids)

    async def run(self, job: StageJob, go: asyncio.Event, tell: Tell) -> None:
        async with ChildProcess("meshinfer.node.stage_host") as child:
            self._pids.add(child.pid)
            await child.send(job)
            try:
                await together(self._relay(child, tell), self._pass_go(child, go))
            finally:
                self._pids.discard(child.pid)

    async def _relay(self, child: ChildProcess, tell: Tell) -> None:
        while True:
            news = await child.receive()
            if news.phase is StagePhase.FAILED:
                raise from_code(news.code, news.why)
            tell(news)

    async def _pass_go(self, child: ChildProcess, go: asyncio.Event) -> None:
        await go.wait()
        await child.send(StageGo())
