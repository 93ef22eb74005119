"""One plan of a term, from the first question to its end: prepared, loaded, joined, served."""

from __future__ import annotations

import asyncio
import logging

from meshinfer.core.calibration_report import CalibrationReport
from meshinfer.core.fleet import MemberState
from meshinfer.core.ids import NodeId
from meshinfer.core.model import ModelShape
from meshinfer.core.plan import Plan
from meshinfer.core.together import together
from meshinfer.errors import MeshInferError, PeerLost
from meshinfer.node.board import Board, ModelState, ModelStatus, served_model
from meshinfer.node.drafting import Drafting, DraftOrder
from meshinfer.node.plan_commit import PlanCommit, Reply, StageParts
from meshinfer.node.ring_ends import consume
from meshinfer.node.serving import Serving, ServingTools, curve_of, trace_file
from meshinfer.node.term_tools import TermTools
from meshinfer.serve.inbox import Encoder, Language
from meshinfer.serve.ring import LeaderRing, RingFacts
from meshinfer.serve.step_cost import Curve

REFRESH_S = 1.0
MOST_HOLDERS = 16
"""PCs that a stage is asked of at once: more links would only compete."""

log = logging.getLogger(__name__)


class Stand:
    """Where a term shows what it does, and takes requests while it serves."""

    def __init__(self) -> None:
        self.board = Board()
        self.serving: Serving | None = None

    def refresh(self) -> None:
        """The newest figures on the board."""
        if self.serving is not None:
            self.board.serving = self.serving.document()


class Generation:
    """One plan from prepare to its end."""

    def __init__(self, stand: Stand, tools: TermTools, plan: Plan, shape: ModelShape) -> None:
        self._stand = stand
        self._tools = tools
        self._plan = plan
        self._shape = shape
        self._commit = PlanCommit(tools.mesh, plan, shape, tools.clock)
        self._drafting: Drafting | None = None
        if plan.draft is not None:
            order = DraftOrder(plan, plan.draft, shape, self._holders())
            self._drafting = Drafting(tools, order)
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
        if self._drafting is None or not self._drafting.takes(sender, message):
            self._commit.post(sender, message)

    async def run(self) -> None:
        """Raises the error that ended the plan; everybody is told to retire."""
        board = self._stand.board
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
            await asyncio.shield(self._retire(why))

    async def _retire(self, why: str) -> None:
        await self._commit.retire(why)
        if self._drafting is not None:
            await self._drafting.retire(why)

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
        tools = ServingTools(
            clock=self._tools.clock,
            curves=self._curves(),
            trace=trace,
            trees=self._trees(),
            speculates=self._tools.library.speculates,
        )
        serving = Serving(self._plan, ring, encoder, language, tools)
        try:
            await together(serving.run(), self._open(serving, language))
        finally:
            if trace is not None:
                trace.close()
            self._stand.serving = None
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

    def _trees(self) -> bool:
        """Whether every stage takes token trees: one that does not refuses the step for all."""
        places = [(0, index) for index in range(self._facts.stages)]
        reports = [self._commit.reports.get(place) for place in places]
        return all(one is not None and one.trees for one in reports)

    async def _open(self, serving: Serving, language: Language) -> None:
        """Let requests in, once one token has gone all the way."""
        await serving.warm_up()
        created = self._tools.library.created(self._plan.model)
        self._stand.board.served = served_model(self._shape, self._plan, created)
        self._stand.serving = serving
        self._say(ModelState.READY, 1.0)
        log.info("%s is served: %s", self._plan.model, self._plan.why)
        if self._drafting is not None:
            await self._drafting.run(serving, language)

    async def _watch_members(self) -> None:
        async for view in self._tools.mesh.watch():
            self._commit.check_members(view)

    async def _refresh_board(self) -> None:
        """Progress while loading, speed while serving, once a second."""
        while True:
            self._stand.board.reports = self._commit.reports
            if self._drafting is not None:
                self._stand.board.drafting = (
                    self._drafting.commit.report,
                    self._drafting.commit.error,
                )
            if self._stand.serving is not None:
                self._stand.refresh()
                self._stand.board.changed.set()
            else:
                self._say(ModelState.LOADING, self._progress())
            await asyncio.sleep(REFRESH_S)

    def _progress(self) -> float:
        reports = self._commit.reports
        return sum(one.progress for one in reports.values()) / max(1, self._facts.stages)

    def _say(self, state: ModelState, progress: float) -> None:
        self._stand.board.reports = self._commit.reports
        self._stand.board.say(ModelStatus(self._plan.model, state, progress))


def _quietly(phase: str, done: int, total: int) -> None:
    """What is told of loading comes from the stages themselves."""
