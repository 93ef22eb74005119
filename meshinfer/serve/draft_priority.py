"""The draft model's process steps back for whoever else needs its core.

A PC that drafts may hold a stage of the large model as well, whose steps all answers wait for; a
guess that comes late costs nothing but itself.
"""

from __future__ import annotations

import os
import sys

_LEAST_NICE = 19
"""A sixty-eighth of the weight of an ordinary process: it runs only in what others leave, yet a
little always. SCHED_IDLE would give way further, but beside a stage that never rests the draft
would then not answer the pings of its link, and be taken for dead (sched(7), sched-nice-design)."""

_IDLE_CLASS = 0x40  # IDLE_PRIORITY_CLASS of SetPriorityClass

if sys.platform == "win32":

    def lower_own_priority() -> bool:
        """Of this process. False: the system refuses, and all goes on as before."""
        import ctypes

        kernel = ctypes.WinDLL("kernel32")
        # A handle is as wide as a pointer, which ctypes would cut to an int.
        kernel.GetCurrentProcess.restype = ctypes.c_void_p
        kernel.SetPriorityClass.argtypes = (ctypes.c_void_p, ctypes.c_uint32)
        return bool(kernel.SetPriorityClass(kernel.GetCurrentProcess(), _IDLE_CLASS))

else:

    def lower_own_priority() -> bool:
        """Of this process. False: the system refuses, and all goes on as before.

        Call it before any thread starts: on Linux a thread has a niceness of its own, which it
        takes from the thread that starts it (setpriority(2)).
        """
        try:
            os.nice(_LEAST_NICE)
        except OSError:
            return False
        return True
