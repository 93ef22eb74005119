"""Where stages come from: this PC's store, else all PCs that may hold pieces of them, over TLS."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
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
        others = [node for node in dict.fromkeys(sources) if node != view.me]
        asked = [
            Source(self._opener(node), spare=node == view.leader)
            for node in _some(others, view.leader)
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


def _some(nodes: list[NodeId], leader: NodeId | None) -> list[NodeId]:
    """At most `MOST_SOURCES`: the leader, who has everything, and the first of the others, which
    the leader named in the order in which they are likely to hold something."""
    ordered = sorted(nodes, key=lambda node: node != leader)
    return ordered[:MOST_SOURCES]
