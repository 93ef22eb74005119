"""Which PC of the lab a connection comes from: the one whose process owns its socket."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import psutil


def owner(port: int, agents: Mapping[int, int]) -> int | None:
    """The PC whose agent or child has local TCP `port`. `agents`: PC -> process id of its agent."""
    for pc, pid in agents.items():
        with contextlib.suppress(psutil.Error):
            agent = psutil.Process(pid)
            for process in (agent, *agent.children(recursive=True)):
                if _has(process, port):
                    return pc
    return None


def _has(process: psutil.Process, port: int) -> bool:
    with contextlib.suppress(psutil.Error):
        connections = process.net_connections("tcp4")
        return any(one.raddr and one.laddr.port == port for one in connections)
    return False
