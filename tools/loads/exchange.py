"""One question over one connection: bytes out, marks of the clock for every token back.

A bare asyncio protocol: no stream objects, no HTTP library, one callback for whatever the kernel
has. The clock of all marks is `time.perf_counter`.
"""

from __future__ import annotations

import asyncio
import json
import time
from array import array
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tools.loads.event_scan import EventScan
from tools.loads.response import Response


@dataclass(frozen=True, slots=True)
class Target:
    """Whom to ask. `path` begins with a slash."""

    host: str
    port: int
    path: str
    is_tls: bool = False
    key: str | None = None

    @classmethod
    def parse(cls, url: str, key: str | None = None) -> Target:
        """`http://HOST:PORT`, with or without `/v1` behind it. Raises ValueError."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"'{url}' is no address; give http://HOST:PORT")
        is_tls = parts.scheme == "https"
        base = parts.path.rstrip("/").removesuffix("/chat/completions").removesuffix("/v1")
        port = parts.port or (443 if is_tls else 80)
        return cls(parts.hostname, port, f"{base}/v1/chat/completions", is_tls, key)

    def request(self, body: dict[str, Any]) -> bytes:
        """The bytes of a request that closes the connection behind it."""
        data = json.dumps(body).encode()
        host = f"[{self.host}]" if ":" in self.host else self.host
        head = [
            f"POST {self.path} HTTP/1.1",
            f"Host: {host}:{self.port}",
            "Content-Type: application/json",
            f"Content-Length: {len(data)}",
            "Connection: close",
            *([f"Authorization: Bearer {self.key}"] if self.key else []),
        ]
        return "\r\n".join([*head, "", ""]).encode() + data


@dataclass(frozen=True, slots=True)
class Question:
    """What to send. `leave_after` hangs up after so many tokens."""

    body: dict[str, Any]
    keep_text: bool = False
    leave_after: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What came. `fault` is None when it came to its end, or was left on purpose."""

    asked: float
    marks: array[float]  # when each piece of text came
    ended: float
    fault: str | None  # kind of what went wrong: "connect", "http 429", "broken off", ...
    retry_after_s: float | None = None
    tokens_told: int | None = None  # by the server; one piece may hold several tokens
    prompt_tokens: int | None = None
    text: str = ""

    @property
    def tokens(self) -> int:
        return len(self.marks) if self.tokens_told is None else self.tokens_told


class Exchange(asyncio.Protocol):
    """One connection's life. `over` is set when it is lost."""

    def __init__(self, request: bytes, question: Question) -> None:
        self.over = asyncio.Event()
        self.marks: array[float] = array("d")
        self.scan = EventScan(question.keep_text)
        self.response = Response()
        self.fault: str | None = None
        self.has_left = False
        self._request = request
        self._leave_after = question.leave_after
        self._body: list[bytes] = []  # of what is not a stream
        self._is_stream: bool | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        try:
            self._take(data, now)
        except ValueError:
            self.fault = "not understood"
            self.hang_up()

    def connection_lost(self, exc: Exception | None) -> None:
        self.over.set()

    def hang_up(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _take(self, data: bytes, now: float) -> None:
        body = self.response.feed(data)
        if not self.response.status:
            return
        if self._is_stream is None:
            kind = self.response.headers.get("content-type", "")
            self._is_stream = kind.startswith("text/event-stream")
        if self._is_stream:
            for _ in range(self.scan.feed(body)):
                self.marks.append(now)
            if self._leave_after is not None and len(self.marks) >= self._leave_after:
                self.has_left = True
                self.hang_up()
        else:
            self._body.append(body)
        if self.response.finished and self._transport is not None:
            self._transport.close()

    def judge(self) -> str | None:
        """What went wrong, once it is over."""
        status = self.response.status
        if self.fault or self.has_left:
            return self.fault
        if status and status != 200:
            return f"http {status}"
        if not self._is_stream and self._body:
            try:
                self.scan.whole(b"".join(self._body))
            except ValueError:
                return "not understood"
            self.marks.append(time.perf_counter())
        if self.scan.error is not None:
            return f"error {self.scan.error}"
        return None if self.scan.done else "broken off"


async def ask(target: Target, question: Question, patience_s: float) -> Answer:
    """One question, answered or not: it never raises for what the other side does."""
    exchange = Exchange(target.request(question.body), question)
    asked = time.perf_counter()
    try:
        async with asyncio.timeout(patience_s):
            await asyncio.get_running_loop().create_connection(
                lambda: exchange, target.host, target.port, ssl=True if target.is_tls else None
            )
            await exchange.over.wait()
    except TimeoutError:
        exchange.fault = "timeout"
    except OSError:
        exchange.fault = "connect"
    finally:
        exchange.hang_up()
    fault = exchange.judge()
    retry = exchange.response.headers.get("retry-after", "")
    return Answer(
        asked=asked,
        marks=exchange.marks,
        ended=time.perf_counter(),
        fault=fault,
        retry_after_s=float(retry) if retry.isdigit() else None,
        tokens_told=exchange.scan.tokens_told,
        prompt_tokens=exchange.scan.prompt_tokens_told,
        text=exchange.scan.text,
    )
