"""A link whose messages arrive late, to try out on fast links how a fleet does on slow ones.

Every message is handed on a fixed time after it arrived: all keep their order and their distances,
so only latency is added and throughput is not. The delay is applied where messages come in; with
the same delay on every PC, a hop between two of them costs it once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from meshinfer.core.fleet import Address
from meshinfer.core.ids import NodeId
from meshinfer.link.base import RING, Dialer, Link, Received
from meshinfer.link.clock import Clock, LoopClock

MOST_MESSAGES = 4096
MOST_BYTES = 32 << 20
"""What may wait here before nothing more is read: 335 MB/s at 100 ms, three times 1 GbE."""

GREETINGS = 1
"""Messages of each side that open a ring link. They have deadlines of their own, made for real
networks, and no delay of an experiment should decide whether a ring comes together."""

Handler = Callable[[Link], Awaitable[None]]


class DelayedLink:
    """Implements `link.base.Link` on top of another, which it owns from now on.

    Reads `inner` in a task of its own, from the first `receive` until the end of the link; `close`
    awaits that task. What arrived before a link was lost is still handed on, in time, then its end.
    `at_once`: so many first messages are not delayed.
    """

    def __init__(
        self, inner: Link, delay_s: float, clock: Clock | None = None, at_once: int = 0
    ) -> None:
        self._inner = inner
        self._delay_s = delay_s
        self._clock: Clock = clock or LoopClock()
        self._at_once = at_once
        self._travelling: deque[Received | Exception] = deque()
        self._arrived: deque[Received | Exception] = deque()
        self._waiting_bytes = 0  # of travelling and arrived
        self._is_over = False  # nothing more comes out of here: `inner` knows why
        self._readable = asyncio.Event()
        self._writable = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None

    @property
    def peer(self) -> NodeId:
        return self._inner.peer

    @property
    def address(self) -> Address:
        return self._inner.address

    async def send(self, message: object, payload: bytes | bytearray | memoryview = b"") -> None:
        """As in base: what goes out is delayed by the other side."""
        await self._inner.send(message, payload)

    async def receive(self) -> Received:
        while not self._is_over:
            if self._reading is None:
                self._reading = asyncio.create_task(self._read())
            if self._arrived:
                return self._take()
            self._readable.clear()
            await self._readable.wait()
        return await self._inner.receive()

    async def close(self, reason: str = "") -> None:
        try:
            if self._reading is not None:
                self._reading.cancel()
                await asyncio.wait([self._reading])
        finally:
            await self._inner.close(reason)
            # Only now: who waits in `receive` goes on to ask `inner`, which must not hand out more.
            self._is_over = True
            self._travelling.clear()
            self._readable.set()

    def _take(self) -> Received:
        item = self._arrived.popleft()
        if isinstance(item, Exception):
            self._is_over = True
            raise item
        self._waiting_bytes -= len(item.payload)
        self._writable.set()
        return item

    async def _read(self) -> None:
        """Until the link ends, whose end is the last thing to travel."""
        try:
            while True:
                while self._is_full():
                    self._writable.clear()
                    await self._writable.wait()
                received = await self._inner.receive()
                self._waiting_bytes += len(received.payload)
                self._travel(received)
        except Exception as error:  # outermost frame of the task: whoever receives gets it
            self._travel(error)

    def _is_full(self) -> bool:
        count = len(self._travelling) + len(self._arrived)
        return count >= MOST_MESSAGES or self._waiting_bytes >= MOST_BYTES

    def _travel(self, item: Received | Exception) -> None:
        self._travelling.append(item)
        if self._at_once > 0:
            self._at_once -= 1
            self._arrive()
        else:
            self._clock.call_at(self._clock.now() + self._delay_s, self._arrive)

    def _arrive(self) -> None:
        """The oldest is there. Delays are equal, so it is the one for which this was called."""
        if self._travelling:  # else the link was closed meanwhile
            self._arrived.append(self._travelling.popleft())
            self._readable.set()


@dataclass(frozen=True, slots=True)
class HopDelay:
    """Decides which links are slow: those of the ring with another PC. 0 s: none.

    A stage host has the identity of its agent, and between the two there is no network.
    """

    me: NodeId
    delay_s: float

    def link(self, link: Link) -> Link:
        if self.delay_s <= 0 or link.peer == self.me:
            return link
        return DelayedLink(link, self.delay_s, at_once=GREETINGS)

    def dialer(self, dialer: Dialer) -> Dialer:
        """One whose RING links are slow where they should be; other channels are not touched."""
        return _HopDialer(self, dialer)

    def handler(self, handler: Handler) -> Handler:
        """For incoming RING links; like a server, it closes each when its handler is done."""

        async def handle(link: Link) -> None:
            late = self.link(link)
            try:
                await handler(late)
            finally:
                if late is not link:
                    await late.close("its handler is done")

        return handle


class _HopDialer:
    """Implements `link.base.Dialer`."""

    def __init__(self, hop: HopDelay, inner: Dialer) -> None:
        self._hop = hop
        self._inner = inner

    async def dial(self, address: Address, channel: str, expect: NodeId | None) -> Link:
        link = await self._inner.dial(address, channel, expect)
        return self._hop.link(link) if channel == RING else link
