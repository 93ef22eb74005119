"""A stage outlives its plan: the next plan finds it loaded, or it is gone before another loads."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import psutil
import pytest

from meshinfer.core.draft import DraftTask
from meshinfer.core.fleet import Address
from meshinfer.core.ids import Epoch, NodeId, PlanId
from meshinfer.errors import PeerLost, StageFailed
from meshinfer.node.stage_runner import StageProcesses
from meshinfer.wire.child import StageJob, StageNews
from meshinfer.wire.commit import StagePhase

pytestmark = [pytest.mark.processes, pytest.mark.slow]

JOB = StageJob(
    state_folder="state", stage_folder="stage", device="CPU", threads=0, deterministic=False,
    configuration="default", probe_folder="", epoch=Epoch(1, NodeId("l")), plan=PlanId("one"),
    pipeline=0, stage=0, stages=2, precision="f32", cache_tokens=64, input_width=0,
    vocabulary_size=10, context_length=64, listen=Address("h", 1), producer=NodeId("l"),
    producer_addresses=(), consumer=NodeId("c"),
)  # fmt: skip


class Plan:
    """One run of a runner, with its news."""

    def __init__(self, runner: StageProcesses, job: StageJob) -> None:
        self.go = asyncio.Event()
        self.news: asyncio.Queue[StageNews] = asyncio.Queue()
        self.task = asyncio.create_task(runner.run(job, self.go, self.news.put_nowait))

    async def until(self, phase: StagePhase) -> StageNews:
        async with asyncio.timeout(20):
            while (news := await self.news.get()).phase is not phase:
                pass
            return news

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])


@asynccontextmanager
async def runner_of(park_s: float = 60.0) -> AsyncIterator[StageProcesses]:
    runner = StageProcesses(park_s, "tests.node.parking_child")
    try:
        yield runner
    finally:
        await runner.close()
        assert not runner.pids


async def served(runner: StageProcesses, job: StageJob) -> str:
    """Serve one plan to its end; how many jobs the host had by then."""
    plan = Plan(runner, job)
    plan.go.set()
    news = await plan.until(StagePhase.SERVING)
    await plan.end()
    return news.why


async def test_the_next_plan_finds_the_same_stage_loaded() -> None:
    async with runner_of() as runner:
        assert await served(runner, JOB) == "1"
        (pid,) = runner.pids
        moved = replace(JOB, plan=PlanId("two"), stage=1, consumer=NodeId("d"))
        assert await served(runner, moved) == "2"
        assert runner.pids == {pid}


async def test_another_stage_loads_only_when_the_old_one_is_gone() -> None:
    """P07."""
    async with runner_of() as runner:
        await served(runner, JOB)
        (old,) = runner.pids
        plan = Plan(runner, replace(JOB, stage_folder="other"))
        assert (await plan.until(StagePhase.READY)).why == "1"
        assert not psutil.pid_exists(old)
        assert len(runner.pids) == 1
        await plan.end()


async def test_a_lost_neighbour_ends_the_plan_and_not_the_stage() -> None:
    async with runner_of() as runner:
        job = replace(JOB, device="breaks")
        for count in ("1", "2"):
            plan = Plan(runner, job)
            plan.go.set()
            assert (await plan.until(StagePhase.READY)).why == count
            async with asyncio.timeout(20):
                with pytest.raises(PeerLost):
                    await plan.task


@pytest.mark.parametrize("device", ["dies", "stuck"])
async def test_a_host_that_does_not_leave_is_ended(device: str) -> None:
    async with runner_of() as runner:
        job = replace(JOB, device=device)
        await served(runner, job)
        assert not runner.pids
        assert await served(runner, job) == "1"


async def test_a_host_that_died_while_it_waited_is_not_used_again() -> None:
    async with runner_of() as runner:
        await served(runner, JOB)
        (pid,) = runner.pids
        psutil.Process(pid).kill()
        with pytest.raises(StageFailed):
            await runner._hosts[0].child.receive()
        assert await served(runner, JOB) == "1"
        assert runner.pids != {pid}


async def test_nobody_wants_it_in_time_so_it_goes() -> None:
    async with runner_of(park_s=0.05) as runner:
        await served(runner, JOB)
        (pid,) = runner.pids or {0}
        process = None
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
        if process is not None:
            await asyncio.to_thread(process.wait, 20)
        async with asyncio.timeout(20):
            assert await served(runner, JOB) == "1"


async def test_a_plan_that_ends_before_it_began_leaves_nothing_in_a_ring() -> None:
    async with runner_of() as runner:
        plan = Plan(runner, JOB)
        await plan.until(StagePhase.READY)
        await plan.end()
        assert await served(runner, JOB) == "2"


async def test_a_draft_beside_a_stage_ends_with_its_plan() -> None:
    """Neither takes the other's place; the stage waits for the next plan, the draft does not."""
    async with runner_of() as runner:
        stage = Plan(runner, JOB)
        await stage.until(StagePhase.READY)
        (stage_pid,) = runner.pids
        draft = Plan(runner, replace(JOB, stage_folder="small", draft=DraftTask(10, (), ())))
        draft.go.set()
        await draft.until(StagePhase.SERVING)
        assert len(runner.pids) == 2
        stage.go.set()
        await stage.until(StagePhase.SERVING)
        await draft.end()
        assert runner.pids == {stage_pid}
        await stage.end()
        assert await served(runner, replace(JOB, plan=PlanId("two"))) == "2"
        assert runner.pids == {stage_pid}
