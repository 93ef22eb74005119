"""One PC's part in plans, with a leader that is a list and stages that are events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from meshinfer.core.draft import DraftTask
from meshinfer.core.fleet import Address, FleetView
from meshinfer.core.ids import Digest, Epoch, ModelId, NodeId, PlanId
from meshinfer.core.model import StageManifest, UnitRange
from meshinfer.core.plan import DraftPlan, Pipeline, Plan, PlanKind, StagePlan
from meshinfer.core.seal import Seal
from meshinfer.engine.toy import ToyModel
from meshinfer.errors import DiskFull, PeerLost, StageFailed, TrustRefused
from meshinfer.node.stage_job import KeeperOptions
from meshinfer.node.stage_keeper import StageKeeper
from meshinfer.node.stage_runner import Tell
from meshinfer.wire.child import StageJob, StageNews
from meshinfer.wire.commit import (
    Activate,
    Declined,
    Load,
    LoadDraft,
    Prepare,
    Prepared,
    Retire,
    StagePhase,
    StageReport,
)

ME, LEADER = NodeId("me"), NodeId("leader")
EPOCH = Epoch(3, LEADER)
SHAPE = ToyModel().shape()


def plan(name: str, epoch: Epoch = EPOCH, weight: int = 100) -> Plan:
    stage = StagePlan(ME, "CPU", UnitRange(0, 5), 0, 1, weight, 50, (Address("h", 1),))
    return Plan(
        PlanId(name), epoch, ModelId("m"), PlanKind.SINGLE, "why", "f32", 64, 64,
        (Pipeline((stage,)),),
    )  # fmt: skip


MANIFEST = StageManifest(ModelId("m"), Digest("d"), UnitRange(0, 5), "2026.4", (), Digest("s"))


SEAL = Seal(b"certificate", b"by the leader")


class Vouchers:
    """One signature is right. Implements node.seals.Seals."""

    def seal(self, digest: Digest) -> Seal:
        return SEAL

    def signer(self, digest: Digest, seal: Seal) -> NodeId:
        if (digest, seal) != (MANIFEST.digest, SEAL):
            raise TrustRefused("nobody of this fleet")
        return LEADER


class Leader:
    """Hears what the keeper says; `wait_for` gives the first message that fits."""

    def __init__(self) -> None:
        self.heard: list[object] = []
        self.accepted = {EPOCH}
        self._news = asyncio.Event()

    @property
    def view(self) -> FleetView:
        return FleetView(ME, (), EPOCH, LEADER)

    def accepts(self, epoch: Epoch, sender: NodeId) -> bool:
        return epoch in self.accepted and sender == LEADER

    async def send(self, node: NodeId, message: object) -> None:
        if node != LEADER:
            raise PeerLost("unknown")
        self.heard.append(message)
        self._news.set()

    async def wait_for(self, fits: Callable[[object], bool]) -> object:
        async with asyncio.timeout(10):
            while True:
                for message in self.heard:
                    if fits(message):
                        return message
                self._news.clear()
                await self._news.wait()


class Runner:
    """A stage that becomes ready at once and serves until it is cancelled or told to fail."""

    def __init__(self) -> None:
        self.loaded: list[PlanId] = []
        self.in_memory = 0
        self.most_in_memory = 0
        self.fail = asyncio.Event()
        self.empty = asyncio.Event()

    async def run(self, job: StageJob, go: asyncio.Event, tell: Tell) -> None:
        self.loaded.append(job.plan)
        self.in_memory += 1
        self.most_in_memory = max(self.most_in_memory, self.in_memory)
        try:
            tell(StageNews(StagePhase.READY, 1.0))
            await go.wait()
            tell(StageNews(StagePhase.SERVING, 1.0))
            await self.fail.wait()
            raise StageFailed("the device was lost")
        finally:
            await asyncio.sleep(0)  # unloading takes a moment
            self.in_memory -= 1
            self.empty.set()


async def fetched(manifest: object, sources: object, tell: Callable[[int, int], None]) -> Path:
    tell(5, 10)
    return Path("stage")


@asynccontextmanager
async def keeping(leader: Leader, runner: Runner, fetch=fetched, room: int = 1000):  # type: ignore[no-untyped-def]
    options = KeeperOptions("state", Address("127.0.0.1", 1), 0, False)
    keeper = StageKeeper(leader, runner, fetch, Vouchers(), lambda: room, options)
    task = asyncio.create_task(keeper.run())
    try:
        yield keeper
    finally:
        task.cancel()
        await asyncio.wait([task])


def in_phase(phase: StagePhase) -> Callable[[object], bool]:
    return lambda message: isinstance(message, StageReport) and message.phase is phase


async def serve(keeper: StageKeeper, leader: Leader, name: str, wanted: Plan | None = None) -> None:
    keeper.post(LEADER, Prepare(wanted or plan(name), SHAPE))
    await leader.wait_for(lambda m: m == Prepared(PlanId(name)))
    keeper.post(LEADER, Load(EPOCH, PlanId(name), (MANIFEST,), (SEAL,), (LEADER,), (b"",)))
    await leader.wait_for(lambda m: in_phase(StagePhase.READY)(m) and m.plan == name)  # type: ignore[attr-defined]
    keeper.post(LEADER, Activate(EPOCH, PlanId(name)))
    await leader.wait_for(lambda m: in_phase(StagePhase.SERVING)(m) and m.plan == name)  # type: ignore[attr-defined]


async def test_prepare_load_activate() -> None:
    leader, runner = Leader(), Runner()
    async with keeping(leader, runner) as keeper:
        await serve(keeper, leader, "one")
        phases = [m.phase for m in leader.heard if isinstance(m, StageReport)]
        assert phases[0] is StagePhase.FETCHING
        assert runner.in_memory == 1
    assert runner.in_memory == 0


async def test_a_new_plan_loads_only_when_the_old_stage_is_gone() -> None:
    """P07: never two sets of layers in memory."""
    leader, runner = Leader(), Runner()
    async with keeping(leader, runner) as keeper:
        for turn in range(5):
            await serve(keeper, leader, f"plan {turn}")
    assert runner.most_in_memory == 1
    assert len(runner.loaded) == 5


async def test_an_old_epoch_and_a_stranger_are_declined() -> None:
    leader, runner = Leader(), Runner()
    async with keeping(leader, runner) as keeper:
        keeper.post(LEADER, Prepare(plan("old", Epoch(2, LEADER)), SHAPE))
        declined = await leader.wait_for(lambda m: isinstance(m, Declined))
        assert isinstance(declined, Declined)
        assert declined.epoch == EPOCH
        keeper.post(NodeId("stranger"), Prepare(plan("strange"), SHAPE))
        await serve(keeper, leader, "good")
        keeper.post(NodeId("stranger"), Retire(EPOCH, PlanId("good"), "malice"))
        keeper.post(LEADER, Retire(EPOCH, PlanId("another"), "not this one"))
        await asyncio.sleep(0)
        assert keeper.held is not None
        assert runner.in_memory == 1


async def test_too_little_memory_is_declined_with_both_figures() -> None:
    leader = Leader()
    async with keeping(leader, Runner(), room=120) as keeper:
        keeper.post(LEADER, Prepare(plan("big"), SHAPE))
        declined = await leader.wait_for(lambda m: isinstance(m, Declined))
    assert isinstance(declined, Declined)
    assert declined.code == "not_enough_memory"
    assert "150 B" in declined.why
    assert "120 B" in declined.why


async def test_a_stage_that_fails_is_reported_and_unloaded() -> None:
    leader, runner = Leader(), Runner()
    async with keeping(leader, runner) as keeper:
        await serve(keeper, leader, "one")
        runner.fail.set()
        report = await leader.wait_for(in_phase(StagePhase.FAILED))
        assert isinstance(report, StageReport)
        assert report.code == "stage_failed"
        assert "device was lost" in report.why
        assert runner.in_memory == 0
        runner.fail.clear()
        await serve(keeper, leader, "two")


async def test_a_fetch_that_fails_names_its_reason() -> None:
    async def full(*_: object) -> Path:
        raise DiskFull("300 MB are needed, 200 MB are free.")

    leader, runner = Leader(), Runner()
    async with keeping(leader, runner, full) as keeper:
        keeper.post(LEADER, Prepare(plan("one"), SHAPE))
        keeper.post(LEADER, Load(EPOCH, PlanId("one"), (MANIFEST,), (SEAL,), (LEADER,), (b"",)))
        report = await leader.wait_for(in_phase(StagePhase.FAILED))
    assert isinstance(report, StageReport)
    assert report.code == "disk_full"
    assert not runner.loaded


@pytest.mark.parametrize("accepted", [set(), {Epoch(9, NodeId("other"))}])
async def test_a_lost_lease_ends_the_plan(accepted: set[Epoch]) -> None:
    leader, runner = Leader(), Runner()
    async with keeping(leader, runner) as keeper:
        await serve(keeper, leader, "one")
        leader.accepted = accepted
        await keeper.lease_lost()
        async with asyncio.timeout(5):
            await runner.empty.wait()
        assert keeper.held is None


async def test_a_manifest_that_nobody_of_the_fleet_signed_is_neither_fetched_nor_loaded() -> None:
    leader, runner = Leader(), Runner()
    asked: list[object] = []

    async def fetch(manifest: object, sources: object, tell: object) -> Path:
        asked.append(manifest)
        return Path("stage")

    async with keeping(leader, runner, fetch) as keeper:
        keeper.post(LEADER, Prepare(plan("one"), SHAPE))
        await leader.wait_for(lambda m: m == Prepared(PlanId("one")))
        forged = Seal(b"certificate", b"by somebody")
        keeper.post(LEADER, Load(EPOCH, PlanId("one"), (MANIFEST,), (forged,), (LEADER,), (b"",)))
        failed = await leader.wait_for(in_phase(StagePhase.FAILED))
    assert isinstance(failed, StageReport)
    assert failed.code == TrustRefused.code
    assert not asked
    assert not runner.loaded


def with_draft(name: str, node: NodeId, weight: int = 30) -> Plan:
    """The plan `name` with a draft model of `weight` and 10 bytes of cache on `node`."""
    small = StagePlan(node, "CPU", UnitRange(0, 5), 0, 1, weight, 10, ())
    return replace(plan(name), draft=DraftPlan(ModelId("small"), small, 256, 64, 64))


def load_draft(name: str) -> LoadDraft:
    task = DraftTask(256, (1,), ())
    return LoadDraft(EPOCH, PlanId(name), MANIFEST, SEAL, (LEADER,), b"", task)


def of_the_draft(phase: StagePhase) -> Callable[[object], bool]:
    """Behind the one pipeline of these plans."""
    return lambda one: in_phase(phase)(one) and (one.pipeline, one.stage) == (1, 0)  # type: ignore[attr-defined]


async def serve_with_draft(keeper: StageKeeper, leader: Leader, name: str) -> None:
    await serve(keeper, leader, name, with_draft(name, ME))
    keeper.post(LEADER, load_draft(name))
    await leader.wait_for(lambda m: of_the_draft(StagePhase.SERVING)(m) and m.plan == name)  # type: ignore[attr-defined]


async def test_a_draft_runs_beside_a_stage_and_ends_with_the_plan() -> None:
    leader, runner = Leader(), Runner()
    async with keeping(leader, runner) as keeper:
        for turn in range(3):
            await serve_with_draft(keeper, leader, f"plan {turn}")
            assert runner.in_memory == 2
        keeper.post(LEADER, Retire(EPOCH, PlanId("plan 2"), "enough"))
        async with asyncio.timeout(5):
            while runner.in_memory:
                runner.empty.clear()
                await runner.empty.wait()
    assert runner.most_in_memory == 2


async def test_a_draft_alone_is_granted_like_a_stage() -> None:
    leader, runner = Leader(), Runner()
    elsewhere = Pipeline((replace(plan("one").pipelines[0].stages[0], node=NodeId("other")),))
    alone = replace(with_draft("one", ME), pipelines=(elsewhere,))
    async with keeping(leader, runner) as keeper:
        keeper.post(LEADER, Prepare(alone, SHAPE))
        await leader.wait_for(lambda m: m == Prepared(PlanId("one")))
        keeper.post(LEADER, load_draft("one"))
        await leader.wait_for(of_the_draft(StagePhase.SERVING))
        assert runner.in_memory == 1


async def test_a_draft_without_room_leaves_the_stage_alone() -> None:
    """The stage takes 150 bytes and the draft 40."""
    leader, runner = Leader(), Runner()
    async with keeping(leader, runner, room=189) as keeper:
        await serve(keeper, leader, "one", with_draft("one", ME))
        keeper.post(LEADER, load_draft("one"))
        failed = await leader.wait_for(of_the_draft(StagePhase.FAILED))
        assert isinstance(failed, StageReport)
        assert failed.code == "not_enough_memory"
        assert "40 B" in failed.why
        assert runner.in_memory == 1
