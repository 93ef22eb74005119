"""The draft's process gives way, with all threads that it starts afterwards."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import os, threading
from meshinfer.serve.draft_priority import lower_own_priority
lowered = lower_own_priority()
found = [os.getpriority(os.PRIO_PROCESS, 0)]
thread = threading.Thread(target=lambda: found.append(os.getpriority(os.PRIO_PROCESS, 0)))
thread.start()
thread.join()
print(lowered, *found)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="niceness")
def test_it_and_its_threads_are_as_nice_as_can_be() -> None:
    # A process of its own: niceness cannot be taken back.
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["True", "19", "19"]
