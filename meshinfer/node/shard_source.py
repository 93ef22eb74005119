"""Where stages come from: this PC's store, else all PCs that may hold pieces of them, over TLS."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Protocol

from meshinfer.core.fleet import FleetView
from meshinfer.core.ids import NodeId
from meshinfer.core.model import StageManifest
from meshinfer.errors import MeshInferError, PeerLost
from meshinfer.link.base import TRANSFER, Dialer, Link
from meshinfer.weights.exchange import Exchange
from meshinfer.weights.transfer import Source, pull_stage

MOST_SOURCES = 8
"""Links of one pull: more would not make it faster, and each costs both sides threads."""


class Fleet(Protocol):
    @property
    def view(self) -> FleetView: ...


class ShardSource:
    """Implements node.stage_keeper.Fetch."""

    def __init__(self, exchange: Exchange, dialer: Dialer, mesh: Fleet) -> None:
        self._exchange = exchange
        self._dialer = dialer
        self._mesh = mesh

    async def fetch(
        self,
        manifest: StageManifest,
        sources: tuple[NodeId, ...],
        tell: Callable[[int, int], None],
    ) -> Path:
        """The stage's folder, every byte checked against the manifest."""
        view = self._mesh.view
        asked = [
            Source(self._opener(node), spare=node == view.leader)
            for node in worth_asking(sources, view)
        ]
        return await pull_stage(manifest, asked, self._exchange, tell)

    def _opener(self, node: NodeId) -> Callable[[], Awaitable[Link]]:
        async def open_link() -> Link:
            member = self._mesh.view.member(node)
            reason: MeshInferError = PeerLost("The PC that holds the stage is gone.")
            for address in member.agent_addresses if member else ():
                try:
                    return await self._dialer.dial(address, TRANSFER, node)
                except MeshInferError as error:
                    reason = error
            raise reason

        return open_link


def worth_asking(nodes: Iterable[NodeId], view: FleetView) -> list[NodeId]:
    """At most `MOST_SOURCES`, each once and this PC left out: the leader, who has everything, then
    the first of the others, which it named in the order in which they are likely to hold something.
    """
    others = [node for node in dict.fromkeys(nodes) if node != view.me]
    return sorted(others, key=lambda node: node != view.leader)[:MOST_SOURCES]
