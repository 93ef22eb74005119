"""From a port of this machine to the same port inside a namespace: the way to an agent's API."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import threading

from tools.labs.carrying import Valve, carry_both
from tools.labs.line import Line
from tools.labs.namespaces import entered
from tools.labs.quality import LinkQuality


async def open_way(name: str, port: int) -> asyncio.Server:
    """Listen on 127.0.0.1:`port` here and connect to the same inside of namespace `name`."""
    tasks: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            with contextlib.suppress(OSError):
                raw = await asyncio.to_thread(_connected, name, port)
                far = await asyncio.open_connection(sock=raw)
                await carry_both((reader, writer), far, _direct(), _direct())
        finally:
            tasks.discard(task)
            writer.transport.abort()

    return await asyncio.start_server(accept, "127.0.0.1", port)


def _direct() -> Valve:
    return Valve(Line(LinkQuality(), random.Random(0)))


def _connected(name: str, port: int) -> socket.socket:
    """A socket belongs for ever to the namespace of the thread that made it, so the thread is a
    new one that ends at once. Raises OSError."""
    found: list[socket.socket | OSError] = []

    def connect() -> None:
        try:
            entered(name)
            found.append(socket.create_connection(("127.0.0.1", port), timeout=5.0))
        except OSError as error:
            found.append(error)

    thread = threading.Thread(target=connect)
    thread.start()
    thread.join()
    if isinstance(found[0], OSError):
        raise found[0]
    found[0].setblocking(False)
    return found[0]
