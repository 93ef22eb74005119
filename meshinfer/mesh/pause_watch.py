"""Notices that this PC was late or slept. Pure.

After a lid was closed the monotonic clock may have stood still (Linux) while the wall clock went
on, or both went on while nothing ran (SIGSTOP, Windows). Either way leases ended meanwhile.
"""

from __future__ import annotations

from enum import Enum

from meshinfer.mesh.timing import MeshTiming


class Pause(Enum):
    NONE = "in time"
    LAGGED = "the event loop was late"
    SLEPT = "the PC slept, or its clock was set"


class PauseWatch:
    """`notice` is called at every tick, and before anything that only an awake PC may do."""

    def __init__(self, timing: MeshTiming, now: float, wall: float) -> None:
        self._timing = timing
        self._now = now
        self._wall = wall
        self.late_s = 0.0  # of the last notice

    def notice(self, now: float, wall: float) -> Pause:
        elapsed_s = now - self._now
        jump_s = abs((wall - self._wall) - elapsed_s)
        self._now, self._wall = now, wall
        self.late_s = max(0.0, elapsed_s - self._timing.tick_s)
        if max(jump_s, self.late_s) > self._timing.jump_s:
            return Pause.SLEPT
        return Pause.LAGGED if self.late_s > self._timing.lag_s else Pause.NONE
