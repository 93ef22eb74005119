"""The leader's side of having the draft model run: one PC, beside the plan that serves already.

Nothing of it touches the plan: a PC that refuses, fails or falls silent costs the drafts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from meshinfer.core.draft import DraftTask
from meshinfer.core.ids import NodeId
from meshinfer.core.model import ModelShape
from meshinfer.core.plan import DraftPlan, Plan
from meshinfer.core.seal import Seal
from meshinfer.errors import MeshInferError, TimedOut, from_code
from meshinfer.node.plan_commit import (
    PREPARE_PATIENCE_S,
    SILENCE_S,
    Courier,
    Reply,
    StageParts,
)
from meshinfer.wire.commit import (
    Declined,
    LoadDraft,
    Prepare,
    Prepared,
    Retire,
    StagePhase,
    StageReport,
)

_JOINED = (StagePhase.READY, StagePhase.SERVING)


class DraftCommit:
    """`has_stage`: the draft's PC holds a stage of the plan too, and so the plan."""

    def __init__(
        self, mesh: Courier, plan: Plan, draft: DraftPlan, clock: Callable[[], float]
    ) -> None:
        self._mesh = mesh
        self._plan = plan
        self._draft = draft
        self._clock = clock
        self._replies: asyncio.Queue[Reply] = asyncio.Queue()
        self.has_stage = any(
            stage.node == draft.stage.node for pipe in plan.pipelines for stage in pipe.stages
        )
        self.report: StageReport | None = None
        self.error: MeshInferError | None = None  # why there are no drafts now

    @property
    def node(self) -> NodeId:
        return self._draft.stage.node

    def takes(self, sender: NodeId, message: Reply) -> bool:
        """Take a reply, if it is one of the draft's: from its PC, and not of a stage."""
        if sender != self.node or message.plan != self._plan.id:
            return False
        if isinstance(message, StageReport):
            if (message.pipeline, message.stage) != (self._plan.draft_pipeline, 0):
                return False
        elif self.has_stage:
            return False
        self._replies.put_nowait(message)
        return True

    async def prepare(self, shape: ModelShape) -> None:
        """Bind its PC to the plan, if no stage does. Raises PeerLost, TimedOut, its refusal."""
        if self.has_stage:
            return
        self._forget_replies()
        await self._mesh.send(self.node, Prepare(self._plan, shape))
        try:
            async with asyncio.timeout(PREPARE_PATIENCE_S):
                while not isinstance(reply := await self._replies.get(), Prepared):
                    if isinstance(reply, Declined):
                        raise from_code(reply.code, reply.why)
        except TimeoutError:
            raise TimedOut("the draft's PC took too long to prepare.") from None

    async def load(
        self, parts: StageParts, seal: Seal, sources: tuple[NodeId, ...], task: DraftTask
    ) -> None:
        """Until it is tested and dials. Raises PeerLost, TimedOut, what it failed with."""
        plan = self._plan
        self.report = self.error = None
        self._forget_replies()
        await self._mesh.send(
            self.node,
            LoadDraft(
                epoch=plan.epoch,
                plan=plan.id,
                manifest=parts.manifest,
                seal=seal,
                sources=sources,
                probe=parts.probe,
                task=task,
            ),
        )
        while self.report is None or self.report.phase not in _JOINED:
            await self._follow()

    async def watch(self) -> None:
        """Its later reports: what it fails with is raised."""
        while True:
            await self._follow()

    async def retire(self, why: str) -> None:
        """Free a PC that has nothing else of the plan. Raises PeerLost."""
        if not self.has_stage:
            plan = self._plan
            await self._mesh.send(self.node, Retire(plan.epoch, plan.id, why[:500]))

    def _forget_replies(self) -> None:
        """What an earlier try said last, as why it failed, answers nothing that is asked now."""
        while not self._replies.empty():
            self._replies.get_nowait()

    async def _follow(self) -> None:
        try:
            async with asyncio.timeout(SILENCE_S):
                reply = await self._replies.get()
        except TimeoutError:
            raise TimedOut("the draft's PC went silent.") from None
        if isinstance(reply, StageReport):
            self.report = reply
            if reply.phase is StagePhase.FAILED:
                raise from_code(reply.code, reply.why)
