"""A plan at work on its leader: scheduler, ring, decode loop and inbox, for as long as it lasts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshinfer.core.calibration_report import CalibrationReport
from meshinfer.core.ids import ModelId, RequestId
from meshinfer.core.plan import Plan
from meshinfer.core.request import GREEDY, ChatMessage, Event, GenerationRequest
from meshinfer.errors import MeshInferError, TimedOut, UsageError
from meshinfer.link.base import Link
from meshinfer.serve.decode_loop import DecodeLoop
from meshinfer.serve.draft_channel import DraftChannel
from meshinfer.serve.draft_link import DraftFacts, DraftLink
from meshinfer.serve.inbox import Encoder, Inbox, Language
from meshinfer.serve.ring import LeaderRing, StepOutcome
from meshinfer.serve.scheduler import Scheduler, SchedulerLimits
from meshinfer.serve.speculation import Speculation, SpeculationOptions
from meshinfer.serve.statistics import RingStatistics
from meshinfer.serve.step_cost import Curve, StepCost
from meshinfer.serve.trace import TracedStep, TraceFile

BLOCK_TOKENS = {"CPU": 32, "GPU": 256}
"""Largest cache block of the engine on each kind of device (facts, openvino 2)."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServingTools:
    clock: Callable[[], float]
    curves: tuple[Curve, ...] = ()  # of every stage, as it measured itself; empty: unknown
    trace: TraceFile | None = None
    trees: bool = False  # all stages take token trees
    speculates: bool = True


def trace_file(path: Path | None, stages: int) -> TraceFile | None:
    """A new trace at `path`. One that cannot be written costs a warning, not the serving."""
    if path is None:
        return None
    try:
        return TraceFile(path, stages)
    except UsageError as error:
        log.warning("%s", error)
        return None


def curve_of(report: CalibrationReport) -> Curve:
    """Step times by tokens: of decoding rows up to the smallest prompt chunk, then of chunks."""
    curve = report.curve
    smallest = curve.prefill[0][0] if curve.prefill else 1 << 30
    return (*(point for point in curve.decode if point[0] < smallest), *curve.prefill)


def _shared_stage(plan: Plan) -> int | None:
    """The stage that computes on the draft model's processor."""
    if plan.draft is None:
        return None
    own = plan.draft.stage.node, plan.draft.stage.device
    stages = plan.pipelines[0].stages
    places = (index for index, one in enumerate(stages) if (one.node, one.device) == own)
    return next(places, None)


class Serving:
    """`run` drives it; `generate` may be called meanwhile."""

    def __init__(
        self,
        plan: Plan,
        ring: LeaderRing,
        encoder: Encoder,
        language: Language,
        tools: ServingTools,
    ) -> None:
        stages = plan.pipelines[0].stages
        self._model: ModelId = plan.model
        self._ring = ring
        cost = StepCost(len(stages), tools.curves)
        self._speculation: Speculation | None = None
        if tools.speculates:
            options = SpeculationOptions(trees=tools.trees, shared_stage=_shared_stage(plan))
            self._speculation = Speculation(cost, options, tools.clock)
        self._draft: DraftChannel | None = None
        self._scheduler = Scheduler(
            SchedulerLimits(
                cache_tokens=plan.cache_tokens,
                block_size=max(BLOCK_TOKENS.get(one.device.split(".")[0], 256) for one in stages),
            ),
            cost,
            self._speculation,
        )
        self._statistics = RingStatistics(len(stages), tools.clock)
        self._trace = tools.trace
        observers = (cost.take, self._statistics.record, self._record)
        self._loop = DecodeLoop(self._scheduler, ring, observers, after_sending=self._inform_draft)
        self._inbox = Inbox(encoder, language, self._scheduler, self._loop.wake, tools.clock)

    async def run(self) -> None:
        """Until the ring breaks. Raises PeerLost or ProtocolViolation; requests end with it."""
        await self._loop.run(self._inbox)

    async def use_draft(self, link: Link) -> None:
        """Guess with the model at the other end of `link`, until it ends. Raises PeerLost,
        ProtocolViolation: answers go on without it."""
        if self._speculation is None:
            return
        ring = self._ring.facts
        peer = DraftLink(link, DraftFacts(ring.epoch, ring.plan, ring.vocabulary_size))
        self._draft = DraftChannel(self._scheduler, self._speculation, peer, self._loop.wake)
        self._draft.notice()
        try:
            await self._draft.run()
        finally:
            self._draft = None

    def _inform_draft(self) -> None:
        if self._draft is not None:
            self._draft.notice()

    def generate(self, request: GenerationRequest) -> AsyncGenerator[Event, None]:
        return self._inbox.generate(request)

    def close(self, error: MeshInferError) -> None:
        """End all requests with `error`. Idempotent."""
        self._inbox.close(error)

    def _record(self, outcome: StepOutcome) -> None:
        if self._trace is not None:
            self._trace.record(TracedStep.of(outcome))

    async def warm_up(self, patience_s: float = 60.0) -> None:
        """One token through everything that a request meets. Raises TimedOut or its error."""
        request = GenerationRequest(
            id=RequestId("warm-up"),
            model=self._model,
            messages=(ChatMessage("user", "Hello"),),
            prompt=None,
            sampling=GREEDY,
            max_tokens=1,
        )
        try:
            async with (
                asyncio.timeout(patience_s),
                contextlib.aclosing(self._inbox.generate(request)) as events,
            ):
                async for _ in events:
                    pass
        except TimeoutError as error:
            raise TimedOut(f"No token came through the ring in {patience_s:.0f} s.") from error

    def document(self) -> dict[str, Any]:
        """The `serving` part of the status."""
        speed = self._statistics.speed()
        guesses = None if self._speculation is None else self._speculation.figures
        return {
            "running": self._scheduler.running,
            "waiting": self._scheduler.waiting,
            "tokens_per_s": round(speed.tokens_per_s, 2),
            "acceptance": None if guesses is None else guesses.acceptance,
            "speculation": None if guesses is None else guesses.document(),
            "cache_used": round(self._scheduler.cache_used, 4),
            "cache_kept": round(self._scheduler.cache_kept, 4),
            "tokens": speed.tokens,
            "steps": speed.steps,
            "wire_ms": round(speed.wire_ms, 3),
            "stages": [
                {
                    "compute_ms": round(one.compute_ms, 3),
                    "wait_ms": round(one.wait_ms, 3),
                    "queue_ms": round(one.queue_ms, 3),
                    "handle_ms": round(one.handle_ms, 3),
                }
                for one in speed.stages
            ],
        }
