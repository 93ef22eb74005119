"""A stage's weights file is mapped while the stage loads; what has been read of it is let go.

OpenVINO maps the .bin and the CPU plugin packs the weights into memory of its own, matrix by
matrix, some of them only when they are first used. Without this, the pages of the file stay with
the process beside the packed copy: a stage of 577 MB of a 1.5B model peaked at 1378 MB of resident
memory, with it at 828 MB (measured on OpenVINO 2026.4.1). Pages that are needed again come back
from the file. Called by the stage host.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

EVERY_S = 0.05 if sys.platform == "linux" else 0.5
"""On Windows all of the process's pages go, so less often."""

_DONT_NEED = 4  # MADV_DONTNEED of Linux: the mapping stays, its clean pages go


@contextmanager
def let_go(weights: Path) -> Iterator[None]:
    """While the block runs, and at its end, pages of the mapped file `weights` are let go."""
    release = _releaser(weights)
    if release is None:
        yield
        return
    done = threading.Event()

    def keep_releasing() -> None:
        while not done.wait(EVERY_S):
            release()

    thread = threading.Thread(target=keep_releasing, name="mapped-weights")
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        release()


if sys.platform == "linux":

    def _releaser(weights: Path) -> Callable[[], int] | None:
        library = ctypes.CDLL(None, use_errno=True)
        advise = library.madvise
        advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        name = str(weights.resolve())

        def release() -> int:
            """Bytes of mappings that were let go."""
            total = 0
            for begin, end in mappings(name):
                if advise(begin, end - begin, _DONT_NEED) == 0:
                    total += end - begin
            return total

        return release

    def mappings(name: str) -> Iterator[tuple[int, int]]:
        """Addresses of the read-only mappings of a file (proc_pid_maps(5)): a page of one that was
        written to must not go."""
        for line in Path("/proc/self/maps").read_text(errors="replace").splitlines():
            words = line.split(maxsplit=5)
            if len(words) == 6 and words[5] == name and words[1].startswith("r-"):
                begin, end = (int(word, 16) for word in words[0].split("-"))
                yield begin, end

elif sys.platform == "win32":

    def _releaser(weights: Path) -> Callable[[], int] | None:
        """Windows takes pages from a process only as a whole; those that are needed come back from
        its standby list."""
        process = ctypes.windll.kernel32.GetCurrentProcess()
        trim = ctypes.windll.psapi.EmptyWorkingSet

        def release() -> int:
            return int(trim(process))

        return release

else:

    def _releaser(weights: Path) -> Callable[[], int] | None:
        return None
