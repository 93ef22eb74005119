"""Server-sent events counted without reading them: only what carries no text is parsed.

Pure. A token costs two searches in its bytes; JSON is read for the few events at the ends of a
stream (role, finish, usage, error), and for all only where the text is wanted.
"""

from __future__ import annotations

import json
from typing import Any

KEYS = (b'"content":', b'"reasoning_content":', b'"text":')
"""What text stands behind, in chats and in completions. In a JSON string its quotes are escaped, so
that no text can look like it."""


class EventScan:
    """Feeds on the body of a stream."""

    def __init__(self, keep_text: bool = False) -> None:
        self.done = False  # `[DONE]` came
        self.error: str | None = None  # code of an error inside the stream
        self.tokens_told: int | None = None  # `usage`: of the answer
        self.prompt_tokens_told: int | None = None
        self._texts: list[str] | None = [] if keep_text else None
        self._held = b""

    @property
    def text(self) -> str:
        return "".join(self._texts or ())

    def feed(self, body: bytes) -> int:
        """How many events with text have ended in `body`. Raises ValueError: not JSON."""
        data = self._held + body if self._held else body
        found = at = 0
        while (end := data.find(b"\n", at)) >= 0:
            if data.startswith(b"data:", at):
                found += self._event(data[at + 5 : end])
            at = end + 1
        self._held = data[at:]
        return found

    def whole(self, body: bytes) -> None:
        """The document of an answer that is not streamed. Raises ValueError."""
        document = json.loads(body)
        self._note(document)
        self._keep(document)
        self.done = self.error is None

    def _event(self, event: bytes) -> bool:
        if _has_text(event):
            if self._texts is not None:
                self._keep(json.loads(event))
            return True
        event = event.strip()
        if event == b"[DONE]":
            self.done = True
        elif event:
            self._note(json.loads(event))
        return False

    def _note(self, document: dict[str, Any]) -> None:
        usage = document.get("usage")
        if usage:
            self.tokens_told = usage.get("completion_tokens")
            self.prompt_tokens_told = usage.get("prompt_tokens")
        if "error" in document:
            error = document["error"]
            told = error.get("code") or error.get("type") if isinstance(error, dict) else error
            self.error = str(told)

    def _keep(self, document: dict[str, Any]) -> None:
        if self._texts is None:
            return
        for choice in document.get("choices", ()):
            place = choice.get("delta") or choice.get("message") or choice
            self._texts.append(place.get("content") or place.get("text") or "")


def _has_text(event: bytes) -> bool:
    """Whether a key is followed by a string that is not empty."""
    for key in KEYS:
        place = event.find(key)
        if place >= 0:
            value = event[place + len(key) : place + len(key) + 3].lstrip()
            if value[:1] == b'"' and value[:2] != b'""':
                return True
    return False
