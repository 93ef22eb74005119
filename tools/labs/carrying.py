"""Bytes of one TCP connection on their way through a line, and back through another.

A line with a cut holds bytes back instead of losing them, as TCP would send them again: the
other side hears silence, and everything goes on after it is healed. TLS inside notices nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Coroutine
from dataclasses import replace

from tools.labs.line import Line

PIECE = 1 << 16
MOST_PIECES = 256
"""16 MiB that were read and are not yet due: 1.3 Gbit/s at 100 ms."""

End = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Valve:
    """A line for TCP: `line` without its cut, and an event that is set while nothing is cut."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self.is_open = asyncio.Event()
        self.change()

    def change(self) -> None:
        """After the quality of the line was set."""
        quality = self.line.quality
        self.line.quality = replace(quality, cut=False)
        if quality.cut:
            self.is_open.clear()
        else:
            self.is_open.set()


async def carry_both(near: End, far: End, there: Valve, back: Valve) -> None:
    """Until both sides have ended, or one broke; both are closed then."""
    for _, writer in (near, far):
        raw = writer.get_extra_info("socket")
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        with contextlib.suppress(OSError):
            await _both(_carry(near[0], far[1], there), _carry(far[0], near[1], back))
    finally:
        near[1].transport.abort()
        far[1].transport.abort()


async def _both(*ways: Coroutine[None, None, None]) -> None:
    """Until all are done; the first that fails ends the others, and its error comes out."""
    tasks = [asyncio.create_task(way) for way in ways]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, valve: Valve) -> None:
    """One direction, to its end. Raises OSError when either side broke."""
    queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(MOST_PIECES)
    await _both(_take(reader, queue, valve), _hand_on(writer, queue, valve))


async def _take(
    reader: asyncio.StreamReader, queue: asyncio.Queue[tuple[float, bytes]], valve: Valve
) -> None:
    loop = asyncio.get_running_loop()
    while True:
        piece = await reader.read(PIECE)
        due = valve.line.arrival(loop.time(), len(piece))
        await queue.put((due if due is not None else loop.time(), piece))
        if not piece:
            return


async def _hand_on(
    writer: asyncio.StreamWriter, queue: asyncio.Queue[tuple[float, bytes]], valve: Valve
) -> None:
    loop = asyncio.get_running_loop()
    while True:
        due, piece = await queue.get()
        wait = due - loop.time()
        if wait > 0:
            await asyncio.sleep(wait)
        await valve.is_open.wait()
        if not piece:
            writer.write_eof()
            return
        writer.write(piece)
        await writer.drain()
