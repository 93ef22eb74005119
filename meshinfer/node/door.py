"""This PC's door for requests, whether it leads (its own inbox) or follows (the leader's)."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator
from typing import Any, Protocol

from meshinfer.core.fleet import FleetView
from meshinfer.core.ids import ModelId, NodeId
from meshinfer.core.request import Event, GenerationRequest, ServedModel
from meshinfer.errors import MeshInferError, NotReady, PeerLost
from meshinfer.node.board import ModelState
from meshinfer.node.forward import ForwardDoor
from meshinfer.node.leader_term import LeaderTerm
from meshinfer.wire.forward import FleetReport


class Fleet(Protocol):
    @property
    def view(self) -> FleetView: ...


class NodeDoor:
    """Implements core.request.Door. `term` is set while this PC leads."""

    def __init__(self, mesh: Fleet, forward: ForwardDoor) -> None:
        self._mesh = mesh
        self._forward = forward
        self.term: LeaderTerm | None = None
        self._report: tuple[NodeId, dict[str, Any]] | None = None

    def take_report(self, sender: NodeId, message: FleetReport) -> None:
        """Handler of the mesh: what the leader says of model, plan and serving."""
        with contextlib.suppress(ValueError):
            document = json.loads(message.document)
            if isinstance(document, dict):
                self._report = (sender, document)

    def document(self) -> dict[str, Any] | None:
        """The leader's part of the status: our own, or the newest of the leader that we follow."""
        if self.term is not None:
            return self.term.document()
        leader = self._mesh.view.leader
        if self._report is not None and self._report[0] == leader:
            return self._report[1]
        return None

    def models(self) -> tuple[ServedModel, ...]:
        """The fleet's model, also while it is being loaded: asking for it then says so."""
        document = self.document()
        model = document.get("model") if document else None
        if not model or not model.get("id"):
            return ()
        return (
            ServedModel(
                model=ModelId(model["id"]),
                created=model["created"],
                context_length=model["context_length"],
                is_ready=model["state"] == ModelState.READY,
            ),
        )

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Event, None]:
        """One Started, Deltas, one Finished. Raises what the leader's inbox raises, NotReady when
        there is no leader, PeerLost when it goes."""
        async with contextlib.aclosing(self._source(request)) as events:
            async for event in events:
                yield event

    async def generate_here(self, request: GenerationRequest) -> AsyncGenerator[Event, None]:
        """Only from this PC's own inbox: for requests that were forwarded once already."""
        if self.term is None:
            raise PeerLost("This PC does not lead any more.", "Ask again.")
        async with contextlib.aclosing(self._own(self.term, request)) as events:
            async for event in events:
                yield event

    def _source(self, request: GenerationRequest) -> AsyncGenerator[Event, None]:
        if self.term is not None:
            return self._own(self.term, request)
        view = self._mesh.view
        if view.leader is None or view.leader == view.me:
            raise NotReady("The fleet is electing a leader.", "Try again in a few seconds.")
        return self._forward.generate(view.leader, request)

    def _own(self, term: LeaderTerm, request: GenerationRequest) -> AsyncGenerator[Event, None]:
        if term.serving is None:
            problem: MeshInferError = term.board.problem()
            raise problem
        return term.serving.generate(request)
