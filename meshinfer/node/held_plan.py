"""The plan that a PC's lease is bound to, and its stages there."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from meshinfer.core.ids import NodeId
from meshinfer.core.plan import Plan
from meshinfer.wire.child import StageJob, StageNews
from meshinfer.wire.commit import Prepare, StagePhase, StageReport


@dataclass(slots=True)
class HeldPlan:
    """The plan that this PC's lease is bound to."""

    prepared: Prepare
    leader: NodeId
    go: asyncio.Event = field(default_factory=asyncio.Event)
    work: asyncio.Task[None] | None = None  # its stages here
    draft: asyncio.Task[None] | None = None  # the draft model, if it runs here

    @property
    def plan(self) -> Plan:
        return self.prepared.plan


class StagePart:
    """One stage of a held plan, and its newest report."""

    def __init__(self, held: HeldPlan, job: StageJob) -> None:
        self.held = held
        self.job = job
        self.changed = asyncio.Event()
        self.report = self._report(StageNews(StagePhase.FETCHING, 0.0))

    def note(self, news: StageNews) -> None:
        self.report = self._report(news)
        self.changed.set()

    def _report(self, news: StageNews) -> StageReport:
        job = self.job
        return StageReport(
            plan=job.plan,
            pipeline=job.pipeline,
            stage=job.stage,
            phase=news.phase,
            progress=news.progress,
            code=news.code,
            why=news.why,
            calibration=news.calibration,
            trees=news.trees,
        )
