"""Running one stage in a child process. Cancelling a run takes the stage out of its ring.

A stage outlives its plan for a while: when the next plan wants the same stage of this PC, it is
there at once, with everything that it has cached. Another stage is loaded only when it is gone. A
draft model does not outlive its plan: answers do not wait for the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from meshinfer.core.fleet import Address
from meshinfer.core.ids import NO_EPOCH, NodeId, PlanId
from meshinfer.core.together import together
from meshinfer.errors import (
    MeshInferError,
    PeerLost,
    ProtocolViolation,
    TimedOut,
    from_code,
)
from meshinfer.node.child import ChildProcess
from meshinfer.wire.child import StageGo, StageJob, StageLeave, StageNews
from meshinfer.wire.commit import StagePhase

PARK_S = 45.0
"""How long a stage without a plan keeps its memory: electing and planning anew takes seconds."""

_LEAVE_S = 2.0
"""For leaving the ring; a step that is being computed may have to end first."""

_OF_THE_RING = (PeerLost, TimedOut, ProtocolViolation)
"""What ends a plan and not the stage: a neighbour is gone, or breaks the rules."""

_JOINED = (StagePhase.READY, StagePhase.SERVING)

Tell = Callable[[StageNews], None]


class StageRunner(Protocol):
    async def run(self, job: StageJob, go: asyncio.Event, tell: Tell) -> None:
        """Load and test the stage, tell `ready`, wait for `go`, join the ring, tell `serving`.

        Ends only by an error: StageFailed (it could not load or its process died), PeerLost (a
        neighbour of the ring is gone), or by cancellation, after which it is in no ring.
        """
        ...


@dataclass(slots=True)
class _Host:
    """A stage host with the stage that it holds, whatever plan it serves."""

    stage: StageJob
    child: ChildProcess
    phase: StagePhase = StagePhase.LOADING
    end: asyncio.Task[None] | None = None  # while it is parked: ends it after a time


class StageProcesses:
    """Each stage in a process of its own: a driver that hangs or aborts takes nobody along."""

    def __init__(self, park_s: float = PARK_S, module: str = "meshinfer.node.stage_host") -> None:
        self._park_s = park_s
        self._module = module
        self._hosts: list[_Host] = []

    @property
    def pids(self) -> frozenset[int]:
        """Of the stage hosts that run now, parked ones too."""
        return frozenset(host.child.pid for host in self._hosts)

    async def run(self, job: StageJob, go: asyncio.Event, tell: Tell) -> None:
        host = await self._host_for(job)
        stays = False
        try:
            await host.child.send(job)
            await together(self._relay(host, tell), self._pass_go(host, go))
        except asyncio.CancelledError:
            stays = job.draft is None and await self._leave(host)
            raise
        except _OF_THE_RING:
            stays = job.draft is None and host.phase in _JOINED
            raise
        finally:
            await asyncio.shield(self._put_away(host, stays))

    async def close(self) -> None:
        """End all processes. Idempotent."""
        for host in list(self._hosts):
            await self._stop(host)

    async def _host_for(self, job: StageJob) -> _Host:
        """The parked one that holds this stage; else a new one, when all parked ones are gone: two
        stages would not fit (case P07)."""
        stage = _stage_of(job)
        for host in [one for one in self._hosts if one.end is not None]:
            if host.stage == stage and not host.child.has_ended:
                assert host.end is not None
                host.end.cancel()
                host.end = None
                return host
            await self._stop(host)
        child = ChildProcess(self._module)
        await child.__aenter__()
        host = _Host(stage, child)
        self._hosts.append(host)
        return host

    async def _relay(self, host: _Host, tell: Tell) -> None:
        while True:
            news = await host.child.receive()
            if news.phase is StagePhase.FAILED:
                raise from_code(news.code, news.why)
            host.phase = news.phase
            tell(news)

    async def _pass_go(self, host: _Host, go: asyncio.Event) -> None:
        await go.wait()
        await host.child.send(StageGo())

    async def _leave(self, host: _Host) -> bool:
        """Have the host leave its ring; False when it does not, or has not loaded its stage."""
        if host.phase not in _JOINED:
            return False
        with contextlib.suppress(TimeoutError, MeshInferError):
            async with asyncio.timeout(_LEAVE_S):
                await host.child.send(StageLeave())
                while True:
                    news = await host.child.receive()
                    if news.phase in (StagePhase.PARKED, StagePhase.FAILED):
                        return not news.code or _is_of_the_ring(news)
        return False

    async def _put_away(self, host: _Host, stays: bool) -> None:
        if stays:
            host.end = asyncio.create_task(self._end_later(host))
        else:
            await self._stop(host)

    async def _end_later(self, host: _Host) -> None:
        await asyncio.sleep(self._park_s)
        host.end = None
        await self._stop(host)

    async def _stop(self, host: _Host) -> None:
        if host.end is not None:
            host.end.cancel()
            await asyncio.wait([host.end])
            host.end = None
        await host.child.stop()
        if host in self._hosts:
            self._hosts.remove(host)


def _is_of_the_ring(news: StageNews) -> bool:
    return isinstance(from_code(news.code, news.why), _OF_THE_RING)


def _stage_of(job: StageJob) -> StageJob:
    """What of a job makes the loaded stage, without its place in a plan."""
    nobody = NodeId("")
    return replace(
        job,
        epoch=NO_EPOCH,
        plan=PlanId(""),
        pipeline=0,
        stage=0,
        stages=0,
        listen=Address("", 0),
        probe_folder="",
        producer=nobody,
        producer_addresses=(),
        consumer=nobody,
    )
