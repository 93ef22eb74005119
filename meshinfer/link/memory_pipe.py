"""One direction of an in-memory link: order, delay, back-pressure and faults.

`link.memory` puts two of these together; nobody else needs them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from meshinfer.errors import PeerLost
from meshinfer.link.clock import Clock

# What may lie unread between two PCs before a sender waits: about what kernel buffers, TLS and the
# websocket of a real link hold together.
CAPACITY = 1 << 20


@dataclass(slots=True)
class Direction:
    """The way from one PC to another. Change a field at any time; it holds for what is sent then.

    `cut` swallows everything, closing included: the other side hears silence, as when a cable is
    pulled.
    """

    cut: bool = False
    delay_s: float = 0.0
    drop: int = 0  # so many of the next messages vanish
    damage: int = 0  # so many of the next messages get a flipped bit

    def passes(self, frame: bytearray) -> bool:
        """Whether `frame` goes on; damages it if that is due."""
        if self.cut:
            return False
        if self.drop:
            self.drop -= 1
            return False
        if self.damage:
            self.damage -= 1
            frame[-1] ^= 0x10
        return True


class Pipe:
    """Frames on their way in one direction. One reader; any number of writers."""

    def __init__(self, direction: Direction, clock: Clock) -> None:
        self.direction = direction
        self.ended: str | None = None
        self._clock = clock
        self._travelling: deque[bytearray | str] = deque()  # text: the end, and why
        self._arrived: deque[bytearray] = deque()
        self._unread = 0  # bytes travelling and arrived
        self._latest = 0.0  # when the newest travelling frame arrives
        self._readable = asyncio.Event()
        self._writable = asyncio.Event()

    async def put(self, frame: bytearray) -> None:
        while self._unread >= CAPACITY and self.ended is None:
            self._writable.clear()
            await self._writable.wait()
        if self.ended is None and self.direction.passes(frame):
            self._unread += len(frame)
            self._travel(frame)

    async def get(self) -> bytearray:
        while not self._arrived:
            if self.ended is not None:
                raise PeerLost(self.ended)
            self._readable.clear()
            await self._readable.wait()
        frame = self._arrived.popleft()
        self._unread -= len(frame)
        self._writable.set()
        return frame

    def end(self, why: str) -> None:
        """The writer closes: the reader gets what was sent before, then PeerLost."""
        if not self.direction.cut:
            self._travel(why)

    def shut(self, why: str) -> None:
        """Nothing more comes out, and nobody waits to put in."""
        self.ended = self.ended or why
        self._arrived.clear()
        self._wake()

    def _travel(self, item: bytearray | str) -> None:
        now = self._clock.now()
        arrival = max(now + self.direction.delay_s, self._latest)
        self._travelling.append(item)
        if arrival <= now and len(self._travelling) == 1:
            self._arrive()
            return
        self._latest = arrival  # a shorter delay never lets a frame overtake another
        self._clock.call_at(arrival, self._arrive)

    def _arrive(self) -> None:
        item = self._travelling.popleft()
        if isinstance(item, str):
            self.ended = self.ended or item
            self._wake()
        elif self.ended is None:
            self._arrived.append(item)
            self._readable.set()

    def _wake(self) -> None:
        self._readable.set()
        self._writable.set()
