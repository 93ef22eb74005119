"""What runs while this PC leads: have a model, make a plan, see it through, plan again.

A term is a scope: it is cancelled and awaited when leadership ends, and everything of it (plan,
ring, inbox, board) goes with it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import Any

from meshinfer.core.ids import Epoch, ModelId, NodeId, PlanId
from meshinfer.core.model import ModelShape
from meshinfer.core.plan import Plan
from meshinfer.errors import MeshInferError, NotReady, PeerLost
from meshinfer.node.board import Board, ModelState, ModelStatus
from meshinfer.node.calm_fleet import CalmFleet, unmeasured
from meshinfer.node.generation import Generation, Stand
from meshinfer.node.plan_commit import MemberFailed, Reply
from meshinfer.node.serving import Serving
from meshinfer.node.term_tools import Tell, TermOptions, TermTools

PASSING = (PeerLost.code, NotReady.code)

log = logging.getLogger(__name__)


class LeaderTerm:
    """One term. `run` ends only by cancellation."""

    def __init__(self, epoch: Epoch, tools: TermTools, options: TermOptions) -> None:
        self._stand = Stand()
        self._epoch = epoch
        self._tools = tools
        self._options = options
        self._generation: Generation | None = None
        self._benched: dict[NodeId, float] = {}

    @property
    def board(self) -> Board:
        return self._stand.board

    @property
    def serving(self) -> Serving | None:
        """What takes requests now; None while nothing is served."""
        return self._stand.serving

    def post(self, sender: NodeId, message: Reply) -> None:
        """Take a reply of the plan conversation from the mesh."""
        if self._generation is not None:
            self._generation.post(sender, message)

    def document(self) -> dict[str, Any]:
        """The leader's part of the status, with the newest figures."""
        self._stand.refresh()
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
        tell = self._teller(model, ModelState.FETCHING)
        shape = await self._tools.library.ready(model, tell)
        self.board.say(ModelStatus(model, ModelState.PLANNING))
        draft = await self._tools.library.draft(model, tell)
        self.board.no_draft = draft.why
        self.board.say(ModelStatus(model, ModelState.PLANNING))
        plan = await self._next_plan(shape, draft.shape)
        self._generation = Generation(self._stand, self._tools, plan, shape)
        try:
            await self._generation.run()
        finally:
            self._generation = None
            self.board.plan = None
            self.board.reports = {}
            self.board.drafting = None, None
            self.board.served = None
            self.board.serving = {}

    async def _next_plan(self, shape: ModelShape, draft: ModelShape | None) -> Plan:
        """The planner's answer to the fleet once it is calm; waits while there is none."""
        patience_ends = self._tools.clock() + self._options.measuring_s
        calm = CalmFleet(self._tools.mesh, self._options.settle_s, self._options.recheck_s)
        async for view in calm.views():
            now = self._tools.clock()
            if now < patience_ends and unmeasured(view):
                continue
            benched = frozenset(node for node, until in self._benched.items() if until > now)
            plan_id = PlanId(secrets.token_hex(8))
            outcome = self._tools.plan_for(shape, view, plan_id, benched, draft)
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
