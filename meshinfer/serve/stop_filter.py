"""Stop strings, found in text that arrives in pieces. Pure; one filter per answer.

Text goes in as it is drawn; what leaves can no longer become part of a stop string. The result
does not depend on where the pieces were cut.
"""

from __future__ import annotations


class StopFilter:
    """Ends the text at the stop string that is complete first; of two that are, at the longer."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._held = ""

    def feed(self, text: str) -> tuple[str, bool]:
        """Text that is safe to show, and whether a stop string ended the answer.

        Neither the stop string nor anything behind it is ever returned.
        """
        if not self._stops:
            return text, False
        text = self._held + text
        found = self._first_stop(text)
        if found is not None:
            self._held = ""
            return text[:found], True
        safe = len(text) - self._possible_start(text)
        self._held = text[safe:]
        return text[:safe], False

    def finish(self) -> str:
        """What was held back and turned out not to be a stop string."""
        held, self._held = self._held, ""
        return held

    def _first_stop(self, text: str) -> int | None:
        places = [(text.find(stop), len(stop)) for stop in self._stops]
        ends = [(start + length, start) for start, length in places if start >= 0]
        return min(ends)[1] if ends else None

    def _possible_start(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        return max(_overlap(text, stop) for stop in self._stops)


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop` and is shorter than it.

    Looks only where `stop` may begin: a long stop costs no more than a short one in most text.
    """
    start = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while start >= 0:
        if stop.startswith(text[start:]):
            return len(text) - start
        start = text.find(stop[0], start + 1)
    return 0
