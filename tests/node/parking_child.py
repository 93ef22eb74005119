"""A stage host without a stage, for test_stage_runner: `why` of its news counts its jobs.

The job's device says how it behaves: "breaks" loses its neighbour in every plan, "stuck" never
leaves, "dies" ends when it should leave.
"""

from __future__ import annotations

import asyncio
import sys

from meshinfer.errors import PeerLost
from meshinfer.node.child import ParentPipe
from meshinfer.wire.child import StageGo, StageJob, StageLeave, StageNews
from meshinfer.wire.commit import StagePhase


async def run() -> None:
    pipe = ParentPipe()
    jobs, device = 0, ""
    while True:
        try:
            message = await pipe.receive()
        except PeerLost:
            return
        match message:
            case StageJob():
                jobs, device = jobs + 1, message.device
                pipe.send(StageNews(StagePhase.READY, 1.0, why=str(jobs)))
            case StageGo():
                pipe.send(StageNews(StagePhase.SERVING, 1.0, why=str(jobs)))
                if device == "breaks":
                    pipe.send(StageNews(StagePhase.FAILED, 0.0, PeerLost.code, "a neighbour left"))
            case StageLeave():
                if device == "dies":
                    sys.exit(3)
                if device != "stuck":
                    pipe.send(StageNews(StagePhase.PARKED, 1.0))


if __name__ == "__main__":
    asyncio.run(run())
