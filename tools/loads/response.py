"""An HTTP/1.1 response out of raw bytes, as they come: its head, then chunks, a length or the rest.

Pure. No library does this for the load generator because it shares its cores with what it measures.
"""

from __future__ import annotations

MOST_HEAD = 64 << 10  # bytes


class ChunkedBody:
    """Chunked transfer coding, taken off."""

    def __init__(self) -> None:
        self.finished = False
        self._held = b""
        self._left = 0  # bytes of this chunk that are still to come
        self._ending = 0  # of its line end

    def feed(self, data: bytes) -> bytes:
        """What `data` holds of the body. Raises ValueError: no chunked body."""
        if self._held:
            data, self._held = self._held + data, b""
        parts = []
        at = 0
        while at < len(data) and not self.finished:
            if self._left:
                piece = data[at : at + self._left]
                parts.append(piece)
                at += len(piece)
                self._left -= len(piece)
                self._ending = 0 if self._left else 2
            elif self._ending:
                skipped = min(self._ending, len(data) - at)
                at += skipped
                self._ending -= skipped
            else:
                end = data.find(b"\r\n", at)
                if end < 0:
                    self._held = data[at:]
                    break
                self._left = int(data[at:end].partition(b";")[0], 16)
                self.finished = self._left == 0
                at = end + 2
        return b"".join(parts)


class LengthBody:
    """A body of known length, or one that ends with the connection (None)."""

    def __init__(self, length: int | None) -> None:
        self._left = length

    @property
    def finished(self) -> bool:
        return self._left == 0

    def feed(self, data: bytes) -> bytes:
        if self._left is None:
            return data
        piece = data[: self._left]
        self._left -= len(piece)
        return piece


class Response:
    """One response. `status` is 0 until the head is whole."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self._head = b""
        self._body: ChunkedBody | LengthBody | None = None

    @property
    def finished(self) -> bool:
        """Whether nothing more belongs to it. A body without a length never says so."""
        return self._body is not None and self._body.finished

    def feed(self, data: bytes) -> bytes:
        """What `data` holds of the body. Raises ValueError: this is not HTTP."""
        if self._body is not None:
            return self._body.feed(data)
        self._head += data
        end = self._head.find(b"\r\n\r\n")
        if end < 0:
            if len(self._head) > MOST_HEAD:
                raise ValueError("the response has no end of its head")
            return b""
        rest = self._head[end + 4 :]
        self._body = self._read_head(self._head[:end].decode("latin-1"))
        return self._body.feed(rest)

    def _read_head(self, head: str) -> ChunkedBody | LengthBody:
        first, *lines = head.split("\r\n")
        words = first.split(" ", 2)
        if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
            raise ValueError(f"{first[:60]!r} is no HTTP response")
        self.status = int(words[1])
        for line in lines:
            name, _, value = line.partition(":")
            self.headers[name.strip().lower()] = value.strip()
        if "chunked" in self.headers.get("transfer-encoding", "").lower():
            return ChunkedBody()
        length = self.headers.get("content-length")
        return LengthBody(None if length is None else int(length))
