"""A progress line for anything that takes over a second."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

from meshinfer.core.units import format_bytes

_WIDTH = 30
_REDRAW_S = 0.1
_PLAIN_S = 5.0


class ProgressLine:
    """Redrawn in place on a terminal; elsewhere a plain line every few seconds."""

    def __init__(
        self, out: TextIO = sys.stderr, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._out = out
        self._clock = clock
        self._live = out.isatty()
        self._phase = ""
        self._started = 0.0
        self._start_bytes = 0
        self._drawn = -_PLAIN_S

    def show(self, phase: str, done: int, total: int) -> None:
        """`total` 0 means that it is not known."""
        now = self._clock()
        if phase != self._phase:
            self._end_line()
            self._phase, self._started, self._start_bytes = phase, now, done
            self._drawn = now - _PLAIN_S
        due = _REDRAW_S if self._live else _PLAIN_S
        if now - self._drawn < due and done != total:
            return
        self._drawn = now
        line = self._line(done, total, now)
        self._out.write(f"\r{line}\x1b[K" if self._live else f"{line}\n")
        self._out.flush()

    def close(self) -> None:
        self._end_line()
        self._phase = ""

    def _end_line(self) -> None:
        if self._live and self._phase:
            self._out.write("\n")
            self._out.flush()

    def _line(self, done: int, total: int, now: float) -> str:
        if not total:
            return f"{self._phase} ..."
        share = min(1.0, done / total)
        filled = int(share * _WIDTH)
        bar = "#" * filled + "-" * (_WIDTH - filled)
        seconds = now - self._started
        speed = (done - self._start_bytes) / seconds if seconds > 0.5 else 0.0
        rate = f"  {format_bytes(int(speed))}/s" if speed else ""
        left = f"  {int((total - done) / speed)} s left" if speed and done < total else ""
        sizes = f"{format_bytes(done)} of {format_bytes(total)}"
        return f"{self._phase} [{bar}] {share:4.0%}  {sizes}{rate}{left}"
