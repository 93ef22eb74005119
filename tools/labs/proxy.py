"""TCP proxies in front of the agents: each PC is known to the others by its proxy's address only.

An agent listens on 127.0.0.1 and advertises 127.0.1.N with the same ports, where its proxy listens.
Who dials is found by the owner of the socket, so each ordered pair of PCs has a line of its own.
What it cannot do: the kernels at both ends of a proxy go on acknowledging while a line is cut, so
TCP's own probes of a silent peer find nothing; heartbeats of the fleet do.
"""

from __future__ import annotations

import asyncio
import contextlib

from tools.labs.carrying import Valve, carry_both
from tools.labs.line import Lines
from tools.labs.owners import owner
from tools.labs.quality import LinkQuality

HIDDEN_HOST = "127.0.0.1"


def shown_host(pc: int) -> str:
    """Where the proxy of a PC listens."""
    return f"127.0.1.{pc}"


class ProxyNetwork:
    """Proxies for the agent port and the stage port of each PC, and the lines behind them.

    `ports`: PC -> its agent port. `agents`: PC -> process id, as they become known.
    """

    def __init__(self, lines: Lines, ports: dict[int, int]) -> None:
        self._lines = lines
        self._ports = ports
        self.agents: dict[int, int] = {}
        self._valves: dict[tuple[int, int], Valve] = {}
        self._servers: list[asyncio.Server] = []
        self._tasks: dict[asyncio.Task[None], tuple[int, int]] = {}

    async def start(self) -> None:
        """Raises OSError when a port is taken."""
        for pc, agent_port in self._ports.items():
            for port in (agent_port, agent_port + 1):
                self._servers.append(await self._listen(pc, port))

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        await self._end(list(self._tasks))

    def set(self, source: int, target: int, quality: LinkQuality) -> None:
        valve = self._valve(source, target)
        valve.line.quality = quality
        valve.change()

    async def abort(self, first: int, second: int) -> None:
        """Reset all connections between two PCs, as a firewall may; new ones are let through."""
        pair = {first, second}
        await self._end([task for task, ends in self._tasks.items() if set(ends) == pair])

    async def _listen(self, pc: int, port: int) -> asyncio.Server:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            # A server owns the tasks of its handlers only by a weak reference.
            self._tasks[task] = (0, pc)
            try:
                with contextlib.suppress(asyncio.CancelledError):  # by `abort` or `close`
                    await self._serve(task, pc, port, (reader, writer))
            finally:
                del self._tasks[task]
                writer.transport.abort()

        return await asyncio.start_server(accept, shown_host(pc), port)

    async def _serve(
        self,
        task: asyncio.Task[None],
        pc: int,
        port: int,
        near: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        caller_port = near[1].get_extra_info("peername")[1]
        caller = await asyncio.to_thread(owner, caller_port, dict(self.agents))
        if caller is None:
            return  # it is gone already, or no PC of this lab
        self._tasks[task] = (caller, pc)
        there, back = self._valve(caller, pc), self._valve(pc, caller)
        # An answer to the first packet comes only when both ways are open.
        await there.is_open.wait()
        await back.is_open.wait()
        try:
            far = await asyncio.open_connection(HIDDEN_HOST, port)
        except OSError:
            return  # nobody listens: the caller's connection is reset
        await carry_both(near, far, there, back)

    def _valve(self, source: int, target: int) -> Valve:
        pair = (source, target)
        if pair not in self._valves:
            self._valves[pair] = Valve(self._lines.line(source, target))
        return self._valves[pair]

    async def _end(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
