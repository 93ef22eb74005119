"""Bulk work that lets others of its core go first.

A thread that hashes or encrypts for megabytes keeps its core until the system's next tick, 4 ms on
some, although a ring step waits for the event loop on the same core. It hardly costs anything to
ask in between whether somebody waits.
"""

from __future__ import annotations

import os
import time

STRETCH_BYTES = 64 << 10
"""Of hashing between two calls: some 30 microseconds."""

if hasattr(os, "sched_yield"):

    def give_way() -> None:
        """Whoever waits for this core may have it now."""
        os.sched_yield()

else:  # Windows

    def give_way() -> None:
        """Whoever waits for this core may have it now."""
        time.sleep(0)
