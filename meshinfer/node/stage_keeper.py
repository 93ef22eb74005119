"""This PC's part in plans: one plan at a time, granted under its lease, unloaded when it is over.

The leader's messages come in through `post`; `run` owns everything that follows from them. A held
plan is a scope: ending it cancels and awaits its stages, so that nothing of an old plan is in
memory when a new one loads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol

from meshinfer.core.fleet import FleetView
from meshinfer.core.ids import Epoch, NodeId, PlanId
from meshinfer.core.plan import Plan, StagePlan
from meshinfer.core.together import together
from meshinfer.core.units import format_bytes
from meshinfer.errors import MeshInferError, NotEnoughMemory, NotReady, PeerLost
from meshinfer.node.held_plan import HeldPlan, StagePart
from meshinfer.node.part_keeper import Fetch, PartKeeper, SentStage
from meshinfer.node.seals import Seals
from meshinfer.node.stage_job import KeeperOptions, draft_job, stage_job
from meshinfer.node.stage_runner import StageRunner
from meshinfer.wire.child import StageJob
from meshinfer.wire.commit import (
    Activate,
    Declined,
    Load,
    LoadDraft,
    Prepare,
    Prepared,
    Retire,
)

REPORT_EVERY_S = 1.0

log = logging.getLogger(__name__)


class LeaseHolder(Protocol):
    """What the keeper needs of the mesh."""

    @property
    def view(self) -> FleetView: ...

    def accepts(self, epoch: Epoch, sender: NodeId) -> bool: ...

    async def send(self, node: NodeId, message: object) -> None: ...


class StageKeeper:
    """`room` tells the bytes that stages may use here now; `fetch` has the files brought."""

    def __init__(
        self,
        mesh: LeaseHolder,
        runner: StageRunner,
        fetch: Fetch,
        seals: Seals,
        room: Callable[[], int],
        options: KeeperOptions,
    ) -> None:
        self._mesh = mesh
        self._parts = PartKeeper(
            self._answer, runner, fetch, seals, Path(options.state_folder) / "calibration"
        )
        self._room = room
        self._options = options
        self._commands: asyncio.Queue[tuple[NodeId, object]] = asyncio.Queue()
        self._held: HeldPlan | None = None

    @property
    def held(self) -> HeldPlan | None:
        return self._held

    def post(self, sender: NodeId, message: object) -> None:
        """Take a message of the plan conversation (from any leader, in order)."""
        self._commands.put_nowait((sender, message))

    async def run(self) -> None:
        """Until cancelled; then the held plan is unloaded."""
        try:
            while True:
                sender, message = await self._commands.get()
                await self._obey(sender, message)
        finally:
            await self._drop("the agent ends")

    async def lease_lost(self) -> None:
        """The epoch under which the held plan was granted is over: unload."""
        held = self._held
        if held is not None and not self._mesh.accepts(held.plan.epoch, held.leader):
            self.post(held.leader, Retire(held.plan.epoch, held.plan.id, "the lease ended"))

    async def _obey(self, sender: NodeId, message: object) -> None:
        match message:
            case Prepare():
                await self._prepare(sender, message)
            case Load() if self._is_held(sender, message.plan):
                self._load(message)
            case LoadDraft() if self._is_held(sender, message.plan):
                await self._load_draft(message)
            case Activate() if self._is_held(sender, message.plan):
                assert self._held is not None
                self._held.go.set()
            case Retire() if self._is_held(sender, message.plan):
                await self._drop(message.why)
            case _:
                log.debug("ignored: %s of a plan that is not held", type(message).__name__)

    def _is_held(self, sender: NodeId, plan: PlanId) -> bool:
        held = self._held
        return held is not None and held.plan.id == plan and held.leader == sender

    async def _prepare(self, sender: NodeId, message: Prepare) -> None:
        plan = message.plan
        if not self._mesh.accepts(plan.epoch, sender):
            newest = self._mesh.view.epoch
            await self._answer(
                sender,
                Declined(plan.id, NotReady.code, "its lease belongs to another epoch.", newest),
            )
            return
        await self._drop("a newer plan")
        needed = sum(stage.memory_bytes for stage in self._stages(plan))
        if needed > self._room():
            error = NotEnoughMemory(
                f"{format_bytes(needed)} are needed here, {format_bytes(self._room())} are free."
            )
            await self._answer(sender, Declined(plan.id, error.code, str(error), plan.epoch))
            return
        self._held = HeldPlan(message, sender)
        await self._answer(sender, Prepared(plan.id))

    def _stages(self, plan: Plan) -> list[StagePlan]:
        me = self._mesh.view.me
        return [one for pipe in plan.pipelines for one in pipe.stages if one.node == me]

    def _load(self, message: Load) -> None:
        held = self._held
        assert held is not None
        if held.work is None:
            held.work = asyncio.create_task(self._serve(held, message))

    async def _load_draft(self, message: LoadDraft) -> None:
        """Once more when one failed before. Its stages go on whatever becomes of it."""
        held = self._held
        assert held is not None
        await _ended(held.draft)
        held.draft = asyncio.create_task(self._serve_draft(held, message))

    async def _serve_draft(self, held: HeldPlan, message: LoadDraft) -> None:
        try:
            view = self._mesh.view
            job = draft_job(held.prepared, held.leader, message.task, self._options, view)
            sent = SentStage(message.manifest, message.seal, message.probe, message.sources)
            check = partial(self._check_room, held.plan)
            await self._parts.serve(StagePart(held, job), sent, _at_once(), check)
        except MeshInferError as error:
            log.warning("the draft model ended here: %s", error)

    async def _serve(self, held: HeldPlan, message: Load) -> None:
        """All stages of this PC in one plan. The first that fails ends the others; each failure
        is reported, and a bug is logged: the agent and the next plan live on."""
        try:
            stages = zip(
                self._jobs(held), message.manifests, message.seals, message.probes, strict=True
            )
            await together(
                *[
                    self._parts.serve(
                        StagePart(held, job),
                        SentStage(manifest, seal, probe, message.sources),
                        held.go,
                    )
                    for job, manifest, seal, probe in list(stages)
                ]
            )
        except MeshInferError as error:
            log.warning("plan %s ended here: %s", held.plan.id, error)
        except ValueError:
            log.exception("plan %s: the leader sent other stages than planned", held.plan.id)

    def _check_room(self, plan: Plan) -> None:
        """The draft model comes last: it gets what is left. Raises NotEnoughMemory."""
        assert plan.draft is not None
        own = plan.draft.stage.memory_bytes
        needed = own + sum(stage.memory_bytes for stage in self._stages(plan))
        if needed > self._room():
            raise NotEnoughMemory(
                f"The draft model needs {format_bytes(own)} here, which is more than is left of "
                f"{format_bytes(self._room())}."
            )

    async def _answer(self, leader: NodeId, message: object) -> None:
        try:
            await self._mesh.send(leader, message)
        except PeerLost:
            log.debug("the leader is gone; its lease will end")

    def _jobs(self, held: HeldPlan) -> list[StageJob]:
        view = self._mesh.view
        return [
            stage_job(held.prepared, held.leader, (pipeline, stage), self._options, view)
            for pipeline, pipe in enumerate(held.plan.pipelines)
            for stage, one in enumerate(pipe.stages)
            if one.node == view.me
        ]

    async def _drop(self, why: str) -> None:
        held, self._held = self._held, None
        if held is None or (held.work is None and held.draft is None):
            return
        log.info("plan %s is over here: %s", held.plan.id, why)
        await _ended(held.draft)
        await _ended(held.work)


async def _ended(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.wait([task])


def _at_once() -> asyncio.Event:
    """A draft model waits for nobody: it dials as soon as it is tested."""
    go = asyncio.Event()
    go.set()
    return go
