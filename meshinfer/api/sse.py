"""Server-sent events: JSON documents and comments -> bytes of one HTTP response.

Only `data:` lines and `: comments`: openai-python's decoder (`_streaming.py`) makes an empty event,
which is a JSON error, of `event:`, `retry:` and of any block after an `id:`.
"""

from __future__ import annotations

import asyncio
import json

from aiohttp import web

from meshinfer.api.form import Document

_HEADERS = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # nginx would collect the stream
}


class EventStream:
    """Headers go out with the first write, so until then an error may still choose the status."""

    def __init__(self, request: web.Request, stall_s: float) -> None:
        self._request = request
        self._stall_s = stall_s
        self.response = web.StreamResponse(headers=_HEADERS)

    @property
    def has_begun(self) -> bool:
        return self.response.prepared

    async def data(self, document: Document) -> None:
        # ASCII only: some clients split lines at U+2028 or U+0085 too.
        await self._write(f"data: {json.dumps(document, separators=(',', ':'))}\n\n")

    async def comment(self, text: str) -> None:
        await self._write(f": {text}\n\n")

    async def done(self) -> None:
        await self._write("data: [DONE]\n\n")
        await self.response.write_eof()

    async def fail(self, document: Document) -> None:
        """An error in the middle. No [DONE] after it: clients raise on `error` and would take
        [DONE], or a plain end, for success. Then the connection closes."""
        await self.data(document)
        self.response.force_close()
        await self.response.write_eof()

    async def _write(self, text: str) -> None:
        """Raises ConnectionError when the client is gone or takes nothing any more."""
        try:
            async with asyncio.timeout(self._stall_s):
                if not self.has_begun:
                    await self.response.prepare(self._request)
                await self.response.write(text.encode("ascii"))
        except TimeoutError:
            if self._request.transport is not None:
                self._request.transport.abort()  # a close would wait for the client to read
            raise ConnectionResetError("the client stopped reading") from None
