"""What runs while this PC leads: have a model, make a plan, see it through, serve, plan again.

A term is a scope: it is cancelled and awaited when leadership ends, and everything of it (plan,
ring, inbox, board) goes with it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from meshinfer.core.calibration_report import CalibrationReport
from meshinfer.core.fleet import FleetView, MemberState
from meshinfer.core.ids import Digest, Epoch, ModelId, NodeId, PlanId
from meshinfer.core.model import ModelShape, StageManifest, UnitRange
from meshinfer.core.plan import NoPlan, Plan
from meshinfer.core.seal import Seal
from meshinfer.core.together import together
from meshinfer.errors import MeshInferError, NotReady, PeerLost
from meshinfer.link.base import Dialer
from meshinfer.node.board import Board, ModelState, ModelStatus, served_model
from meshinfer.node.calm_fleet import CalmFleet, unmeasured
from meshinfer.node.plan_commit import Courier, MemberFailed, PlanCommit, Reply, StageParts
from meshinfer.node.ring_desk import RingDesk
from meshinfer.node.ring_ends import consume
from meshinfer.node.serving import Serving, ServingTools, curve_of, trace_file
from meshinfer.serve.inbox import Encoder, Language
from meshinfer.serve.ring import LeaderRing, RingFacts
from meshinfer.serve.step_cost import Curve

REFRESH_S = 1.0
MOST_HOLDERS = 16
"""PCs that a stage is asked of at once: more links would only compete."""
PASSING = (PeerLost.code, NotReady.code)

log = logging.getLogger(__name__)

Tell = Callable[[str, int, int], None]
"""(phase, done, total) of something that takes a while; total 0 when it is not known."""


class Library(Protocol):
    """The models of this PC."""

    def choice(self) -> ModelId | None:
        """The model that this PC would serve."""
        ...

    async def ready(self, model: ModelId, tell: Tell) -> ModelShape:
        """Have the model on disk. Raises ModelNotFound, DiskFull, ..."""
        ...

    async def split(
        self, model: ModelId, ranges: tuple[UnitRange, ...], tell: Tell
    ) -> tuple[StageManifest, ...]: ...

    async def probes(
        self, model: ModelId, ranges: tuple[UnitRange, ...], tell: Tell
    ) -> tuple[bytes, ...]:
        """What each stage is calibrated on; empty where there is nothing."""
        ...

    async def text(self, model: ModelId, context_length: int) -> tuple[Encoder, Language]: ...

    def created(self, model: ModelId) -> int: ...


class FleetMesh(Courier, Protocol):
    """A courier that also tells of changes."""

    def watch(self) -> AsyncIterator[FleetView]: ...


PlanFor = Callable[[ModelShape, FleetView, PlanId, frozenset[NodeId]], Plan | NoPlan]
"""The planner with this PC's options; the set holds PCs to leave out."""


@dataclass(frozen=True, slots=True)
class TermOptions:
    settle_s: float = 1.0  # no change of members for this long before a plan is made
    bench_s: float = 30.0  # a PC that failed its part is left out for this long
    retry_s: float = 2.0
    measuring_s: float = 15.0  # for PCs that still ask their devices what they can
    recheck_s: float = 1.0  # devices and free memory change without a change of members


@dataclass(frozen=True, slots=True)
class TermTools:
    """What a term works with."""

    mesh: FleetMesh
    library: Library
    plan_for: PlanFor
    dialer: Dialer
    seal: Callable[[Digest], Seal]
    desk: RingDesk
    clock: Callable[[], float]
    trace: Path | None = None


class LeaderTerm:
    """One term. `run` ends only by cancellation."""

    def __init__(self, epoch: Epoch, tools: TermTools, options: TermOptions) -> None:
        self.board = Board()
        self.serving: Serving | None = None
        self._epoch = epoch
        self._tools = tools
        self._options = options
        self._generation: Generation | None = None
        self._benched: dict[NodeId, float] = {}

    def post(self, sender: NodeId, message: Reply) -> None:
        """Take a reply of the plan conversation from the mesh."""
        if self._generation is not None:
            self._generation.post(sender, message)

    def document(self) -> dict[str, Any]:
        """The leader's part of the status, with the newest figures."""
        if self.serving is not None:
            self.board.serving = self.serving.document()
        return self.board.document()

    async def run(self) -> None:
        while True:
            model = self._tools.library.choice()
            if model is None:
                self.board.say(ModelStatus(None, ModelState.NONE))
                await asyncio.sleep(self._options.retry_s)
                continue
            try:
                await self._serve_model(model)
            except MeshInferError as error:
                log.warning("%s is not served any more: %s", model, error)
                self._bench(error)
                self.board.say(ModelStatus(model, ModelState.FAILED, 0.0, str(error)))
                await self._pause(error)

    async def _serve_model(self, model: ModelId) -> None:
        """From the checkpoint to the end of one plan, which is always an error."""
        shape = await self._tools.library.ready(model, self._teller(model, ModelState.FETCHING))
        self.board.say(ModelStatus(model, ModelState.PLANNING))
        plan = await self._next_plan(shape)
        self._generation = Generation(self, self._tools, plan, shape)
        try:
            await self._generation.run()
        finally:
            self._generation = None
            self.board.plan = None
            self.board.reports = {}
            self.board.served = None
            self.board.serving = {}

    async def _next_plan(self, shape: ModelShape) -> Plan:
        """The planner's answer to the fleet once it is calm; waits while there is none."""
        patience_ends = self._tools.clock() + self._options.measuring_s
        calm = CalmFleet(self._tools.mesh, self._options.settle_s, self._options.recheck_s)
        async for view in calm.views():
            now = self._tools.clock()
            if now < patience_ends and unmeasured(view):
                continue
            benched = frozenset(node for node, until in self._benched.items() if until > now)
            plan_id = PlanId(secrets.token_hex(8))
            outcome = self._tools.plan_for(shape, view, plan_id, benched)
            if isinstance(outcome, Plan):
                self.board.no_plan = None
                return outcome
            self.board.no_plan = outcome
            self.board.say(ModelStatus(shape.model, ModelState.WAITING, 0.0, outcome.why))
        raise PeerLost("The mesh ended.")

    def _teller(self, model: ModelId, state: ModelState) -> Tell:
        def tell(phase: str, done: int, total: int) -> None:
            self.board.say(ModelStatus(model, state, done / total if total else 0.0, phase))

        return tell

    def _bench(self, error: MeshInferError) -> None:
        """Leave a PC out that could not do its part; not one that is gone, or not ours yet."""
        if isinstance(error, MemberFailed) and error.error.code not in PASSING:
            self._benched[error.node] = self._tools.clock() + self._options.bench_s

    async def _pause(self, error: MeshInferError) -> None:
        """A lost PC is planned around at once; anything else must not spin."""
        lost = isinstance(error, PeerLost) or (
            isinstance(error, MemberFailed) and isinstance(error.error, PeerLost)
        )
        await asyncio.sleep(0 if lost else self._options.retry_s)


class Generation:
    """One plan from prepare to its end."""

    def __init__(self, term: LeaderTerm, tools: TermTools, plan: Plan, shape: ModelShape) -> None:
        self._term = term
        self._tools = tools
        self._plan = plan
        self._shape = shape
        self._commit = PlanCommit(tools.mesh, plan, shape, tools.clock)
        self._facts = RingFacts(
            epoch=plan.epoch,
            plan=plan.id,
            pipeline=0,
            stages=len(plan.pipelines[0].stages),
            precision=plan.precision,
            input_width=0,
            vocabulary_size=shape.vocabulary_size,
            context_length=plan.context_length,
        )

    def post(self, sender: NodeId, message: Reply) -> None:
        self._commit.post(sender, message)

    async def run(self) -> None:
        """Raises the error that ended the plan; everybody is told to retire."""
        board = self._term.board
        board.plan = self._plan
        self._say(ModelState.LOADING, 0.0)
        why = "the leader's term ended"
        try:
            await together(
                self._commit.run(),
                self._watch_members(),
                self._refresh_board(),
                self._commit_and_serve(),
            )
        except MeshInferError as error:
            why = str(error)
            raise
        finally:
            await asyncio.shield(self._commit.retire(why))

    async def _commit_and_serve(self) -> None:
        stages = self._plan.pipelines[0].stages
        await self._commit.prepare()
        ranges = tuple(stage.units for stage in stages)
        text = await self._tools.library.text(self._plan.model, self._plan.context_length)
        library, model = self._tools.library, self._plan.model
        manifests = await library.split(model, ranges, _quietly)
        probes = await library.probes(model, ranges, _quietly)
        parts = {
            (0, index): StageParts(manifest, probe)
            for index, (manifest, probe) in enumerate(zip(manifests, probes, strict=True))
        }
        await self._commit.load(parts, self._tools.seal, self._holders())
        with self._tools.desk.expect(self._facts, 0, stages[0].node) as head:
            await self._commit.activate()
            tail = await consume(
                self._tools.dialer,
                self._facts,
                len(stages),
                stages[-1].node,
                stages[-1].ring_addresses,
            )
            ring = LeaderRing(await head.link(), tail, self._facts, self._tools.clock)
            await self._commit.joined()
            try:
                await self._serve(ring, *text)
            finally:
                await ring.close("the plan ended")

    def _holders(self) -> tuple[NodeId, ...]:
        """Who may hold pieces: this PC all of them, those of the plan soon, others of old plans."""
        view = self._tools.mesh.view
        alive = [one.node for one in view.members if one.state is MemberState.ALIVE]
        return tuple(dict.fromkeys((view.me, *self._commit.nodes, *alive)))[:MOST_HOLDERS]

    async def _serve(self, ring: LeaderRing, encoder: Encoder, language: Language) -> None:
        trace = trace_file(self._tools.trace, len(self._plan.pipelines[0].stages))
        tools = ServingTools(self._tools.clock, self._curves(), trace)
        serving = Serving(self._plan, ring, encoder, language, tools)
        try:
            await together(serving.run(), self._open(serving))
        finally:
            if trace is not None:
                trace.close()
            self._term.serving = None
            self._say(ModelState.PLANNING, 0.0)
            serving.close(PeerLost("The PCs are being planned anew.", "Ask again."))

    def _curves(self) -> tuple[Curve, ...]:
        """What the stages measured of themselves while they were loaded; empty unless all did."""
        places = [(0, index) for index in range(self._facts.stages)]
        reports = [self._commit.reports.get(place) for place in places]
        texts = [one.calibration for one in reports if one is not None and one.calibration]
        if len(texts) < len(places):
            return ()
        return tuple(curve_of(CalibrationReport.from_text(text)) for text in texts)

    async def _open(self, serving: Serving) -> None:
        """Let requests in, once one token has gone all the way."""
        await serving.warm_up()
        created = self._tools.library.created(self._plan.model)
        self._term.board.served = served_model(self._shape, self._plan, created)
        self._term.serving = serving
        self._say(ModelState.READY, 1.0)
        log.info("%s is served: %s", self._plan.model, self._plan.why)

    async def _watch_members(self) -> None:
        async for view in self._tools.mesh.watch():
            self._commit.check_members(view)

    async def _refresh_board(self) -> None:
        """Progress while loading, speed while serving, once a second."""
        while True:
            self._term.board.reports = self._commit.reports
            if self._term.serving is not None:
                self._term.document()
                self._term.board.changed.set()
            else:
                self._say(ModelState.LOADING, self._progress())
            await asyncio.sleep(REFRESH_S)

    def _progress(self) -> float:
        reports = self._commit.reports
        return sum(one.progress for one in reports.values()) / max(1, self._facts.stages)

    def _say(self, state: ModelState, progress: float) -> None:
        self._term.board.reports = self._commit.reports
        self._term.board.say(ModelStatus(self._plan.model, state, progress))


def _quietly(phase: str, done: int, total: int) -> None:
    """What is told of loading comes from the stages themselves."""
