"""A link for many megabytes: TLS in two threads of its own, frames and nothing around them.
`link.bulk_door` makes them.

An event loop that encrypts a megabyte is gone for milliseconds, and a ring step that arrives
meanwhile waits as long. Here the loop only hands over buffers, which are not copied, and OpenSSL
works outside of the GIL.

Two numbers belong to the link itself and to no message: OPEN, which a server sends once it knows
who called, and END, the last frame of either side, with the reason as its payload.
"""

from __future__ import annotations

import asyncio
import socket as sockets
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from meshinfer.core.fleet import Address
from meshinfer.core.ids import NodeId, short
from meshinfer.errors import PeerLost, ProtocolViolation
from meshinfer.link.base import Received
from meshinfer.link.buffers import Buffers
from meshinfer.link.ending import Ending
from meshinfer.link.tls_stream import TlsStream
from meshinfer.link.websocket import CLOSE_ANSWER_S, CLOSE_TIMEOUT_S, tune
from meshinfer.wire import frame, registry
from meshinfer.wire.frame import Limits

OPEN = 0xFFFE
END = 0xFFFF
REASON_BYTES = 500
OWN_LIMITS = {OPEN: Limits(0, 0), END: Limits(0, REASON_BYTES)}

_SCRATCH_BYTES = 16 << 10
_T = TypeVar("_T")


class BulkLink:
    """Implements `link.base.Link`. `stream` has finished its handshake; the link owns it."""

    def __init__(self, stream: TlsStream, channel: str, peer: NodeId, address: Address) -> None:
        stream.raw.settimeout(None)
        tune(stream.raw)
        self._stream = stream
        self._peer = peer
        self._address = address
        self._welcome = registry.welcome(channel)
        self._limits = {**self._welcome, **OWN_LIMITS}
        self._ending = Ending(channel, peer, str(address))
        self._closing: asyncio.Future[None] | None = None
        self._reading: asyncio.Future[Received] | None = None
        self._buffers = Buffers()
        self._preamble = memoryview(bytearray(frame.PREAMBLE_BYTES))
        name = f"{channel}-{short(peer)}"
        self._reader = ThreadPoolExecutor(1, thread_name_prefix=f"read-{name}")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix=f"write-{name}")

    @property
    def peer(self) -> NodeId:
        return self._peer

    @property
    def address(self) -> Address:
        return self._address

    async def send(self, message: object, payload: bytes | bytearray | memoryview = b"") -> None:
        """As in base. Raises ProtocolViolation for a message over its limit; the link lives on.
        When it is cancelled, the payload is still read until the frame is written."""
        self._ending.check()
        try:
            await self._run(self._writer, lambda: self._write(message, payload))
        except (OSError, ValueError) as error:
            raise self._ending.lost(str(error)) from error

    async def receive(self) -> Received:
        self._ending.check()
        if self._reading is None:
            self._read_on()
        assert self._reading is not None
        await asyncio.wait([self._reading])  # a cancelled receive loses nothing
        self._ending.check()
        reading, self._reading = self._reading, None
        try:
            received = reading.result()
        except ProtocolViolation as error:
            raise await self._violated(error.cause) from error
        except PeerLost as error:
            raise self._ending.lost(error.cause) from error
        except (OSError, ValueError) as error:
            raise self._ending.lost(str(error)) from error
        self._read_on()
        return received

    async def close(self, reason: str = "") -> None:
        """As in base; takes 3 s at most, after which the connection is cut."""
        self._ending.closed_here(reason)
        if self._closing is not None:
            await asyncio.wait([self._closing])
            return
        self._closing = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._run(self._writer, lambda: self._write_end(reason))
            async with asyncio.timeout(CLOSE_ANSWER_S):
                await self._run(self._reader, self._drain)
        except (TimeoutError, OSError, ValueError):
            pass  # the other side is gone, or does not read
        finally:
            self._cut()
            self._closing.set_result(None)

    def _read_on(self) -> None:
        """The next message is read while the last one is used: one, so that a slow user is
        back-pressure."""
        self._reading = self._run(self._reader, self._read)
        self._reading.add_done_callback(_seen)

    def _run(self, thread: ThreadPoolExecutor, work: Callable[[], _T]) -> asyncio.Future[_T]:
        return asyncio.get_running_loop().run_in_executor(thread, work)

    async def _violated(self, cause: str) -> ProtocolViolation:
        await self.close("a message broke the rules")
        return self._ending.violation(cause)

    def _cut(self) -> None:
        """End the connection; the threads notice, and the last of them closes the socket."""
        self._stream.shut(sockets.SHUT_RDWR)
        last = threading.Semaphore(1)
        for thread in (self._reader, self._writer):
            thread.submit(self._release, last)
            thread.shutdown(wait=False)

    # On the writing thread.

    def _write(self, message: object, payload: bytes | bytearray | memoryview) -> None:
        head = registry.pack_head(message, payload)
        self._stream.write(head, memoryview(payload).cast("B"))

    def _write_end(self, reason: str) -> None:
        said = reason.encode()[:REASON_BYTES].decode(errors="ignore").encode()
        self._stream.write(frame.join(END, b"", said))
        self._stream.shut(sockets.SHUT_WR)

    # On the reading thread.

    def _read(self) -> Received:
        self._fill(self._preamble)
        size = frame.length(self._preamble, self._limits)
        whole = self._buffers.take(size)
        whole[: frame.PREAMBLE_BYTES] = self._preamble
        self._fill(whole[frame.PREAMBLE_BYTES :])
        if frame.number(self._preamble) in OWN_LIMITS:
            reason = bytes(frame.split(whole, OWN_LIMITS).payload)
            raise PeerLost(reason.decode(errors="replace"))
        return Received(*registry.unpack(whole, self._welcome))

    def _fill(self, target: memoryview) -> None:
        while target:
            count = self._stream.read_into(target)
            if not count:
                raise PeerLost("")
            target = target[count:]

    def _drain(self) -> None:
        """What still comes is not looked at; left unread, it would cost our last words."""
        scratch = memoryview(bytearray(_SCRATCH_BYTES))
        while self._stream.read_into(scratch):
            pass

    # On either.

    def _release(self, last: threading.Semaphore) -> None:
        if not last.acquire(blocking=False):
            self._stream.close()


def _seen(reading: asyncio.Future[Received]) -> None:
    """Nobody may ask for the last message of a link that was closed."""
    if not reading.cancelled():
        reading.exception()
