"""An event loop whose time jumps to the next timer as soon as nothing else is to do.

Waits of minutes take milliseconds, and the order of events does not depend on the machine. Work
for a thread is done at once, on the loop.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any


class _JumpingSelector(selectors.DefaultSelector):
    """Ready at once; what the loop would have waited is added to the time."""

    def __init__(self) -> None:
        super().__init__()
        self.skipped_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("every task waits, and for nothing that could ever happen")
        if not ready and timeout:
            self.skipped_s += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return 1000.0 + self._jumping.skipped_s

    def hang(self, seconds: float) -> None:
        """As if a callback had blocked the loop for so long."""
        self._jumping.skipped_s += seconds

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done


def run_virtual(main: Coroutine[Any, Any, None]) -> None:
    """Run a test to its end. Raises what it raises; pending tasks are cancelled."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main)
