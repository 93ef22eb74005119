"""The leader's side of a plan's two-phase commit. wire/commit.py shows the conversation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from meshinfer.core.fleet import FleetView, MemberState
from meshinfer.core.ids import Digest, NodeId
from meshinfer.core.model import ModelShape, StageManifest
from meshinfer.core.plan import Plan
from meshinfer.core.seal import Seal
from meshinfer.errors import MeshInferError, PeerLost, TimedOut, from_code
from meshinfer.wire.commit import (
    Activate,
    Declined,
    Load,
    Prepare,
    Prepared,
    Retire,
    StagePhase,
    StageReport,
)

PREPARE_PATIENCE_S = 5.0
SILENCE_S = 15.0  # reports come every second; this much silence is a failure
RING_PATIENCE_S = 20.0

Reply = Prepared | Declined | StageReport


class Courier(Protocol):
    """What a commit needs of the mesh."""

    @property
    def view(self) -> FleetView: ...

    async def send(self, node: NodeId, message: object) -> None: ...


class MemberFailed(MeshInferError):
    """One PC could not do its part; the next plan may do without it for a while."""

    code = "member_failed"

    def __init__(self, node: NodeId, name: str, error: MeshInferError) -> None:
        super().__init__(f"{name}: {error}")
        self.node = node
        self.error = error


@dataclass(frozen=True, slots=True)
class StageParts:
    """What a PC gets of one stage beside its files."""

    manifest: StageManifest
    probe: bytes  # what it is calibrated on; may be empty


class PlanCommit:
    """`replies` is filled by the mesh's routes; `run` must be running while phases are awaited."""

    def __init__(
        self,
        mesh: Courier,
        plan: Plan,
        shape: ModelShape,
        clock: Callable[[], float],
    ) -> None:
        self._mesh = mesh
        self._plan = plan
        self._shape = shape
        self._clock = clock
        self._replies: asyncio.Queue[tuple[NodeId, Reply]] = asyncio.Queue()
        self._prepared: set[NodeId] = set()
        self._reports: dict[tuple[int, int], StageReport] = {}
        self._heard: dict[NodeId, float] = {}
        self._changed = asyncio.Event()
        self._stages = {
            (pipeline, stage): one
            for pipeline, pipe in enumerate(plan.pipelines)
            for stage, one in enumerate(pipe.stages)
        }
        self.nodes = tuple(dict.fromkeys(one.node for one in self._stages.values()))

    @property
    def reports(self) -> dict[tuple[int, int], StageReport]:
        """The newest report of every (pipeline, stage) that has reported."""
        return dict(self._reports)

    def post(self, sender: NodeId, message: Reply) -> None:
        """Take a reply from the mesh; replies of other plans are dropped."""
        if message.plan == self._plan.id and sender in self.nodes:
            self._replies.put_nowait((sender, message))

    async def run(self) -> None:
        """Follow the replies. Raises MemberFailed as soon as the plan cannot go on."""
        while True:
            sender, message = await self._replies.get()
            self._heard[sender] = self._clock()
            match message:
                case Prepared():
                    self._prepared.add(sender)
                case Declined():
                    raise self._failed(sender, from_code(message.code, message.why))
                case StageReport() if self._owns(sender, message):
                    self._reports[message.pipeline, message.stage] = message
                    if message.phase is StagePhase.FAILED:
                        raise self._failed(sender, from_code(message.code, message.why))
            self._changed.set()

    def check_members(self, view: FleetView) -> None:
        """Raises MemberFailed when a PC of the plan is gone from `view`."""
        for node in self.nodes:
            member = view.member(node)
            if member is None or member.state is MemberState.DEAD:
                raise self._failed(node, PeerLost("this PC is gone."))

    async def prepare(self) -> None:
        """Phase one: every PC reserves the memory in this epoch."""
        for node in self.nodes:
            await self._send(node, Prepare(self._plan, self._shape))
        everyone = set(self.nodes)
        await self._until(lambda: self._prepared >= everyone, PREPARE_PATIENCE_S, "to prepare")

    async def load(
        self,
        parts: dict[tuple[int, int], StageParts],
        seal: Callable[[Digest], Seal],
        sources: tuple[NodeId, ...],
    ) -> None:
        """Have every stage fetched, compiled and tested."""
        for node in self.nodes:
            own = [parts[place] for place, one in self._stages.items() if one.node == node]
            self._heard[node] = self._clock()
            load = Load(
                epoch=self._plan.epoch,
                plan=self._plan.id,
                manifests=tuple(one.manifest for one in own),
                seals=tuple(seal(one.manifest.digest) for one in own),
                sources=sources,
                probes=tuple(one.probe for one in own),
            )
            await self._send(node, load)
        await self._until(lambda: self._all_in(StagePhase.READY), None, "to load its stage")

    async def activate(self) -> None:
        """Phase two: the stages join the ring."""
        for node in self.nodes:
            await self._send(node, Activate(self._plan.epoch, self._plan.id))

    async def joined(self) -> None:
        """Every stage has both its ring links."""
        await self._until(
            lambda: self._all_in(StagePhase.SERVING), RING_PATIENCE_S, "to join the ring"
        )

    async def retire(self, why: str) -> None:
        """Tell everybody who still listens that the plan is over."""
        for node in self.nodes:
            try:
                await self._mesh.send(node, Retire(self._plan.epoch, self._plan.id, why[:500]))
            except PeerLost:
                continue

    def _owns(self, sender: NodeId, report: StageReport) -> bool:
        stage = self._stages.get((report.pipeline, report.stage))
        return stage is not None and stage.node == sender

    def _all_in(self, phase: StagePhase) -> bool:
        return all(
            place in self._reports and self._reports[place].phase is phase for place in self._stages
        )

    async def _until(
        self, reached: Callable[[], bool], patience_s: float | None, what: str
    ) -> None:
        """Wait for replies. With no patience given, silence of one PC is what ends it."""
        deadline = None if patience_s is None else self._clock() + patience_s
        while not reached():
            self._changed.clear()
            try:
                async with asyncio.timeout(1.0):
                    await self._changed.wait()
            except TimeoutError:
                self._check_patience(deadline, what)

    def _check_patience(self, deadline: float | None, what: str) -> None:
        now = self._clock()
        if deadline is not None:
            if now >= deadline:
                slow = next((n for n in self.nodes if not self._has_replied(n)), self.nodes[0])
                raise self._failed(slow, TimedOut(f"it took too long {what}."))
            return
        for node in self.nodes:
            if now - self._heard.get(node, now) > SILENCE_S:
                raise self._failed(node, TimedOut(f"it went silent on its way {what}."))

    def _has_replied(self, node: NodeId) -> bool:
        if not self._reports:
            return node in self._prepared
        return all(
            self._reports[place].phase is StagePhase.SERVING
            for place, one in self._stages.items()
            if one.node == node and place in self._reports
        )

    async def _send(self, node: NodeId, message: object) -> None:
        try:
            await self._mesh.send(node, message)
        except PeerLost as error:
            raise self._failed(node, error) from error

    def _failed(self, node: NodeId, error: MeshInferError) -> MemberFailed:
        member = self._mesh.view.member(node)
        return MemberFailed(node, member.name if member else node[:8], error)
