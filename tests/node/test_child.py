"""Child processes: what they say, how they end, and that nothing of them is left."""

from __future__ import annotations

import asyncio
import contextlib

import psutil
import pytest

from meshinfer.core.ids import ModelId
from meshinfer.errors import StageFailed
from meshinfer.node.child import ChildProcess
from meshinfer.wire.child import StorePlace, WeightsFailed, WeightsJob, WeightsNews

pytestmark = pytest.mark.slow

JOB = WeightsJob("split", ModelId("no-such"), "models", StorePlace("store", (), 0), ())


def runs(pid: int) -> bool:
    """A zombie does not: it waits for whoever inherited it to look."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


async def test_a_child_answers_and_ends_by_itself() -> None:
    async with ChildProcess("meshinfer.node.weights_host") as child:
        await child.send(JOB)
        answer = await child.receive()
        assert isinstance(answer, WeightsFailed)
        assert answer.code == "model_not_found"
        with pytest.raises(StageFailed, match="ended with code 1"):
            await child.receive()


async def test_a_child_that_floods_and_never_ends_is_gone_with_all_below_it() -> None:
    """A pipe that nobody reads, or that a grandchild holds, must not hold the agent's end."""
    async with asyncio.timeout(30):
        async with ChildProcess("tests.node.flooding_child") as child:
            await child.send(JOB)
            news = await child.receive()
            assert isinstance(news, WeightsNews)
            family = [child.pid, news.done]
            assert all(runs(pid) for pid in family)
        assert not any(runs(pid) for pid in family)


async def test_a_cancelled_owner_leaves_nothing_behind() -> None:
    started = asyncio.Event()
    family: list[int] = []

    async def own() -> None:
        async with ChildProcess("tests.node.flooding_child") as child:
            await child.send(JOB)
            family.extend([child.pid, (await child.receive()).done])
            started.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(own())
    async with asyncio.timeout(30):
        await started.wait()
        task.cancel()
        await asyncio.wait([task])
    assert task.cancelled()
    assert not any(runs(pid) for pid in family)


async def test_a_module_that_cannot_start_is_told_with_its_last_words() -> None:
    async with ChildProcess("meshinfer.no_such_module") as child:
        with pytest.raises(StageFailed, match="no_such_module"):
            await child.receive()
