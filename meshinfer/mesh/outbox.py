"""What waits to be written on one link. One writer takes; anybody puts.

Heartbeats and elections (`post`) never wait and go first. Everything else (`put`) waits for room:
a slow peer slows down who talks to it, and nobody else.
"""

from __future__ import annotations

from collections import deque

from meshinfer.errors import PeerLost
from meshinfer.mesh.notice import Notice

MOST_URGENT = 256
MOST_WAITING = 64  # messages
MOST_BYTES = 8 << 20  # of payloads; the largest message of this channel has none

Item = tuple[object, bytes | bytearray | memoryview]


class Outbox:
    """Sealed: takes nothing more. Ended: also tells its writer so, once it is empty."""

    def __init__(self) -> None:
        self._urgent: deque[object] = deque(maxlen=MOST_URGENT)  # the oldest is outdated first
        self._waiting: deque[Item] = deque()
        self._bytes = 0
        self._sealed = False
        self._ended = False
        self._closed = False
        self._changed = Notice()

    def post(self, message: object) -> None:
        """To be written next, or never if too many are."""
        if not self._sealed:
            self._urgent.append(message)
            self._changed.notify()

    async def put(self, message: object, payload: bytes | bytearray | memoryview) -> bool:
        """Wait for room and queue; False when the link takes nothing more. Raises PeerLost."""
        while self._is_full() and not (self._sealed or self._closed):
            await self._changed.wait()
        if self._closed:
            raise PeerLost("The link was closed.", "Ask again.")
        if self._sealed:
            return False
        self._waiting.append((message, payload))
        self._bytes += memoryview(payload).nbytes
        self._changed.notify()
        return True

    def seal(self, last: object | None = None) -> None:
        """Take nothing more; `last` is written after all that is queued."""
        if last is not None and not self._sealed:
            self._waiting.append((last, b""))
        self._sealed = True
        self._changed.notify()

    def end(self, last: object | None = None) -> None:
        """Seal; the writer is done when all is written."""
        self._ended = True
        self.seal(last)

    def close(self) -> None:
        """Forget what is queued; whoever waits gets PeerLost."""
        self._closed = self._sealed = self._ended = True
        self._urgent.clear()
        self._waiting.clear()
        self._changed.notify()

    async def take(self) -> Item | None:
        """The next to write; None at the end."""
        while True:
            if self._urgent:
                return self._urgent.popleft(), b""
            if self._waiting:
                item = self._waiting.popleft()
                self._bytes -= memoryview(item[1]).nbytes
                self._changed.notify()
                return item
            if self._ended:
                return None
            await self._changed.wait()

    def _is_full(self) -> bool:
        return len(self._waiting) >= MOST_WAITING or self._bytes >= MOST_BYTES
