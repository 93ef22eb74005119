"""The draft model of a plan that serves: have it loaded, hand its link on, try again when it fails.

A scope of its own beside serving. It never ends the plan: whatever goes wrong is logged and shown.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass

from meshinfer.core.draft import DraftTask
from meshinfer.core.ids import NodeId
from meshinfer.core.model import ModelShape
from meshinfer.core.plan import DraftPlan, Plan
from meshinfer.core.together import together
from meshinfer.errors import MeshInferError, PeerLost
from meshinfer.node.draft_commit import DraftCommit
from meshinfer.node.plan_commit import Reply, StageParts
from meshinfer.node.ring_ends import ExpectedConsumer
from meshinfer.node.serving import Serving
from meshinfer.node.term_tools import TermTools
from meshinfer.serve.inbox import Language
from meshinfer.serve.ring import RingFacts

RETRIES_S = (2.0, 15.0, 60.0)
"""Pauses before another try; after the last one the plan goes on without drafts."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DraftOrder:
    """What is to be drafted for, and who may hold pieces of the draft."""

    plan: Plan
    draft: DraftPlan
    shape: ModelShape
    sources: tuple[NodeId, ...]


class Drafting:
    """One plan's. `run` returns when there will be no drafts any more."""

    def __init__(self, tools: TermTools, order: DraftOrder) -> None:
        self._tools = tools
        self._order = order
        self.commit = DraftCommit(tools.mesh, order.plan, order.draft, tools.clock)

    def takes(self, sender: NodeId, message: Reply) -> bool:
        return self.commit.takes(sender, message)

    async def run(self, serving: Serving, language: Language) -> None:
        """`language` is that of the large model."""
        task = DraftTask(
            vocabulary_size=self._order.shape.vocabulary_size,
            ends=tuple(sorted(language.stop_tokens)),
            special=tuple(sorted(language.special_tokens)),
        )
        for pause_s in (*RETRIES_S, None):
            try:
                # Each time: a PC that was started anew meanwhile holds no plan.
                await self.commit.prepare(self._order.shape)
                await self._draft(serving, task)
            except MeshInferError as error:
                self.commit.error = error
                log.warning("%s does not draft: %s", self._order.draft.model, error)
            if pause_s is not None:
                await asyncio.sleep(pause_s)

    async def retire(self, why: str) -> None:
        with contextlib.suppress(PeerLost):
            await self.commit.retire(why)

    async def _draft(self, serving: Serving, task: DraftTask) -> None:
        """Until the draft or its link fails, which is raised."""
        plan, draft = self._order.plan, self._order.draft
        library, units = self._tools.library, (draft.stage.units,)
        (manifest,) = await library.split(draft.model, units, _quietly)
        (probe,) = await library.probes(draft.model, units, _quietly)
        facts = RingFacts(
            epoch=plan.epoch,
            plan=plan.id,
            pipeline=plan.draft_pipeline,
            stages=1,
            precision=plan.precision,
            input_width=0,
            vocabulary_size=task.vocabulary_size,
            context_length=draft.context_length,
        )
        seal = self._tools.seal(manifest.digest)
        with self._tools.desk.expect(facts, 0, draft.stage.node) as consumer:
            parts = StageParts(manifest, probe)
            await self.commit.load(parts, seal, self._order.sources, task)
            # It is watched from here on: what fails before it dials is known at once, by its name.
            await together(self._use(consumer, serving), self.commit.watch())

    async def _use(self, consumer: ExpectedConsumer, serving: Serving) -> None:
        link = await consumer.link()
        log.info("%s drafts for %s", self._order.draft.model, self._order.plan.model)
        await serving.use_draft(link)


def _quietly(phase: str, done: int, total: int) -> None:
    """Nobody waits for a draft."""
