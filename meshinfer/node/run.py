"""An agent as a process: signals, exit code, the state folder's lock."""

from __future__ import annotations

import asyncio
import logging
import signal
from types import FrameType

from meshinfer.node.agent import Agent
from meshinfer.node.settings import Settings
from meshinfer.node.state_folder import StateFolder

log = logging.getLogger(__name__)


def run_agent(settings: Settings) -> int:
    """Until Ctrl-C or SIGTERM; a second one ends at once. Raises UsageError before the start."""
    with StateFolder(settings.state_dir) as folder:
        if settings.model is not None:
            folder.choose_model(settings.model)
        return asyncio.run(_run(Agent(settings, folder)))


async def _run(agent: Agent) -> int:
    loop = asyncio.get_running_loop()
    running = asyncio.create_task(agent.run())
    stops = 0

    def stop(number: int, _: FrameType | None) -> None:
        nonlocal stops
        stops += 1
        if stops > 1:
            raise KeyboardInterrupt
        log.info("stopping (%s)", signal.Signals(number).name)
        loop.call_soon_threadsafe(running.cancel)

    # signal.signal, not loop.add_signal_handler: Windows' event loop has no such thing.
    for name in ("SIGINT", "SIGTERM", "SIGBREAK"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), stop)
    try:
        await running
    except asyncio.CancelledError:
        if not stops:
            raise
    return 0
