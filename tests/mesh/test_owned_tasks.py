"""Tasks do not outlive their owner, and a bug in one is not lost."""

from __future__ import annotations

import asyncio

import pytest

from meshinfer.mesh.owned_tasks import OwnedTasks
from tests.mesh.virtual_time import run_virtual


def test_close_cancels_and_awaits() -> None:
    async def main() -> None:
        tasks = OwnedTasks()
        ended: list[str] = []

        async def work() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(1.0)  # clean-up that takes time is waited for
                ended.append("done")

        tasks.start(work())
        await asyncio.sleep(0)
        await tasks.close()
        assert ended == ["done"]
        await tasks.close()

    run_virtual(main())


def test_a_task_that_starts_another_while_closing_leaves_none() -> None:
    async def main() -> None:
        tasks = OwnedTasks()
        begun: list[int] = []

        async def work(depth: int) -> None:
            begun.append(depth)
            try:
                await asyncio.Event().wait()
            finally:
                tasks.start(work(depth + 1))

        tasks.start(work(0))
        await asyncio.sleep(0)
        await tasks.close()
        assert begun == [0]

    run_virtual(main())


def test_the_first_bug_is_raised_to_the_owner() -> None:
    async def main() -> None:
        tasks = OwnedTasks()

        async def broken() -> None:
            raise ZeroDivisionError

        tasks.start(broken())
        with pytest.raises(ZeroDivisionError):
            await tasks.first_bug()
        await tasks.close()

    run_virtual(main())
