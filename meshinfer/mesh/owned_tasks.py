"""Tasks with an owner: it cancels and awaits them, and learns of a bug in any of them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class OwnedTasks:
    """Started from synchronous code, where a TaskGroup cannot be at hand."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._bug: BaseException | None = None
        self._failed = asyncio.Event()
        self._closed = False

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """After `close` the work is not begun."""
        if self._closed:
            work.close()
            return
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def first_bug(self) -> None:
        """Until a task fails; then its error is raised here."""
        await self._failed.wait()
        assert self._bug is not None
        raise self._bug

    async def close(self) -> None:
        """Idempotent. No task runs when it returns."""
        self._closed = True
        while self._tasks:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            self._tasks.difference_update(tasks)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._bug = self._bug or task.exception()
            self._failed.set()
