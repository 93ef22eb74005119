"""The one thread that computes. Calls go in from the event loop, results come back to it.

A stage is not thread-safe and blocks for milliseconds to minutes: everything that touches it runs
here, in order, while heartbeats go on (LightLLM PR 1463: a busy node that looks dead).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from meshinfer.errors import StageFailed

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class EngineThread:
    """One thread, one queue. Owned by whoever owns the stage."""

    def __init__(self, name: str = "engine") -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._closed = False
        self._last: Future[None] | None = None

    async def run(
        self,
        function: Callable[_Arguments, _Result],
        *arguments: _Arguments.args,
        **options: _Arguments.kwargs,
    ) -> _Result:
        """Call `function` on the thread, after all calls that came before.

        A caller's cancellation lets a call that has begun run to its end: the stage stays whole;
        one that has not begun never does. Raises StageFailed when the thread is closed, else
        whatever the function raises.
        """
        if self._closed:
            raise _closed()
        future = self._executor.submit(self._call, function, arguments, options)
        return await asyncio.wrap_future(future)

    async def close(self) -> None:
        """Wait for the call that runs, refuse those that wait. Idempotent."""
        self._closed = True
        if self._last is None:
            self._last = self._executor.submit(_nothing)
        # Behind everything else in the queue: when it has run, the thread is idle and joining it
        # does not hold the event loop.
        await asyncio.shield(asyncio.wrap_future(self._last))
        self._executor.shutdown(wait=True)

    def _call(
        self,
        function: Callable[..., _Result],
        arguments: tuple[object, ...],
        options: dict[str, object],
    ) -> _Result:
        if self._closed:
            raise _closed()
        return function(*arguments, **options)


def _nothing() -> None:
    return


def _closed() -> StageFailed:
    return StageFailed("The engine is closed.", "Ask again when the stage is loaded.")
