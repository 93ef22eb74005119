"""A local HTTP server that does what it should not: one behaviour a request, then it behaves."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Behaviour = Callable[["Request"], None]


class Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Any

    def do_GET(self) -> None:
        rude: RudeServer = self.server.rude
        rude.ranges.append(self.headers.get("Range"))
        self.close_connection = True
        behaviour = rude.script.pop(0) if rude.script else behave
        behaviour(self)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Quiet."""

    @property
    def data(self) -> bytes:
        content: bytes = self.server.rude.data
        return content

    @property
    def offset(self) -> int:
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        return int(asked[1]) if asked else 0

    def reply(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.push(body)

    def push(self, body: bytes) -> None:
        self.server.rude.sent += len(body)  # before the client can have it all
        self.wfile.write(body)

    def head(self) -> bytes:
        """Send the headers of a right answer; the body that belongs to it is returned."""
        rest = self.data[self.offset :]
        headers = {"Content-Length": str(len(rest)), "Content-Type": "application/octet-stream"}
        if self.offset:
            end = len(self.data)
            headers["Content-Range"] = f"bytes {self.offset}-{end - 1}/{end}"
        self.reply(206 if self.offset else 200, headers)
        return rest


def behave(request: Request) -> None:
    request.push(request.head())


def cut_after(count: int) -> Behaviour:
    def cut(request: Request) -> None:
        request.push(request.head()[:count])
        request.wfile.flush()
        request.connection.shutdown(socket.SHUT_RDWR)

    return cut


def stall_after(count: int) -> Behaviour:
    def stall(request: Request) -> None:
        request.push(request.head()[:count])
        request.wfile.flush()
        request.server.rude.over.wait(20)

    return stall


def answer(status: int, body: bytes, **headers: str) -> Behaviour:
    named = {name.replace("_", "-"): value for name, value in headers.items()}

    def reply(request: Request) -> None:
        request.reply(status, {"Content-Length": str(len(body)), **named}, body)

    return reply


def ignore_range(request: Request) -> None:
    request.reply(200, {"Content-Length": str(len(request.data))}, request.data)


def no_length(extra: bytes) -> Behaviour:
    """The end of the connection is the end of the body."""

    def reply(request: Request) -> None:
        request.reply(200, {"Connection": "close"}, request.data + extra)

    return reply


@dataclass
class RudeServer:
    data: bytes
    script: list[Behaviour] = field(default_factory=list)
    ranges: list[str | None] = field(default_factory=list)
    sent: int = 0
    over: threading.Event = field(default_factory=threading.Event)
    url: str = ""


@contextmanager
def serving(data: bytes, *script: Behaviour, name: str = "a.whl") -> Iterator[RudeServer]:
    rude = RudeServer(data, list(script))
    server = ThreadingHTTPServer(("127.0.0.1", 0), Request)
    server.rude = rude  # type: ignore[attr-defined]
    rude.url = f"http://127.0.0.1:{server.server_address[1]}/{name}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield rude
    finally:
        rude.over.set()
        server.shutdown()
        server.server_close()
        thread.join()
