"""Run coroutines as one: the first error ends them all, and cancellation is never lost.

Not asyncio.TaskGroup: before Python 3.13 a group whose child fails at the moment when the group is
cancelled raises the child's error and swallows the cancellation, so that a loop around it ("a lost
PC: plan again") goes on after its owner ended it. It also wraps one error in a group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from meshinfer.errors import MeshInferError


async def together(*work: Coroutine[Any, Any, None]) -> None:
    """Returns when all have ended. The first error cancels the others, which are awaited, and is
    raised as it is; an error that is not a MeshInferError (a bug) goes before one that is.

    Cancelling the caller cancels all and awaits them; nothing of `work` outlives this call.
    """
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        await _end(tasks)
    errors = [error for task in tasks if (error := _error_of(task)) is not None]
    if errors:
        raise next((one for one in errors if not isinstance(one, MeshInferError)), errors[0])


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    """Cancel what runs and wait for it, also when the waiting is cancelled meanwhile."""
    cancelled: asyncio.CancelledError | None = None
    for task in tasks:
        task.cancel()
    while not all(task.done() for task in tasks):
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


def _error_of(task: asyncio.Task[None]) -> BaseException | None:
    return None if task.cancelled() else task.exception()
