"""TLS over a blocking socket, for one thread that reads and one that writes.

Not ssl.SSLSocket: two threads may not use one SSL object at the same time, and with a socket inside
of it each would hold the other up while it waits. Here the object works on memory, for a few
microseconds at a time, and the threads wait on the socket without it. It also reads 256 KiB at a
time where OpenSSL would read a record of 16 KiB in two calls.
"""

from __future__ import annotations

import contextlib
import socket as sockets
import ssl
import threading
from typing import cast

from meshinfer.core.courtesy import give_way

_READ_BYTES = 256 << 10
_RECORD_BYTES = 16 << 10
_FLUSH_BYTES = 96 << 10  # below what malloc takes from the system, page by page


class TlsStream:
    """Owns the socket. `server_name` is whom a client calls."""

    def __init__(
        self, raw: sockets.socket, context: ssl.SSLContext, server_name: str | None = None
    ) -> None:
        self.raw = raw
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=context.protocol is ssl.PROTOCOL_TLS_SERVER,
            server_hostname=server_name,
        )
        self._arrived = memoryview(bytearray(_READ_BYTES))
        self._one = threading.Lock()  # of who uses the SSL object
        self._sending = threading.Lock()  # of who sends what it made: records keep their order

    def handshake(self) -> None:
        """Within the socket's timeout for each wait. Raises OSError (ssl.SSLError is one)."""
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                self._flush()
                if not self._receive():
                    raise ConnectionResetError("the other side left during the handshake") from None
            except ssl.SSLError:
                with contextlib.suppress(OSError):
                    self._flush()  # the alert says why
                raise
            else:
                self._flush()
                return

    def read_into(self, target: memoryview) -> int:
        """At least one byte; 0 when the other side has ended. Raises OSError."""
        while True:
            try:
                with self._one:
                    # typeshed knows of the form that returns bytes only
                    count = cast(int, self.tls.read(len(target), target))
            except ssl.SSLWantReadError:
                if self._outgoing.pending:  # an answer of TLS itself, to a change of keys
                    self._flush()
                if not self._receive():
                    return 0
            except ssl.SSLZeroReturnError:
                return 0
            else:
                return count

    def write(self, *parts: bytes | bytearray | memoryview) -> None:
        """All of them, one behind the other. Raises OSError."""
        waiting = 0
        for part in parts:
            rest = memoryview(part)
            while rest:
                with self._one:
                    count = self.tls.write(rest[:_RECORD_BYTES])
                rest = rest[count:]
                waiting += count
                if waiting >= _FLUSH_BYTES:
                    self._flush()
                    waiting = 0
        self._flush()

    def shut(self, how: int) -> None:
        """As socket.shutdown, also when it is cut already; wakes threads that wait on it."""
        with contextlib.suppress(OSError):
            self.raw.shutdown(how)

    def close(self) -> None:
        """Once no thread uses it any more."""
        self.raw.close()

    def _receive(self) -> int:
        give_way()
        count = self.raw.recv_into(self._arrived)
        with self._one:
            self._incoming.write(self._arrived[:count])
        return count

    def _flush(self) -> None:
        with self._sending:
            with self._one:
                data = self._outgoing.read()
            self.raw.sendall(data)
        give_way()
