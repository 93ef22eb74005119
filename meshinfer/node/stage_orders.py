"""What the agent tells a stage host while it runs."""

from __future__ import annotations

import asyncio

from meshinfer.node.child import ParentPipe
from meshinfer.wire.child import StageGo, StageJob, StageLeave


class Left(Exception):
    """The agent took the stage out of its plan."""


async def obey(pipe: ParentPipe, go: asyncio.Event) -> None:
    """Raises Left; PeerLost when the agent is gone."""
    while True:
        match await pipe.receive():
            case StageGo():
                go.set()
            case StageLeave():
                raise Left


async def next_job(pipe: ParentPipe) -> StageJob:
    """Of the same stage: the agent sees to that. Raises PeerLost when it is gone."""
    while True:
        message = await pipe.receive()
        if isinstance(message, StageJob):
            return message
