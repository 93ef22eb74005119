"""Where stages come from: this PC's store, else a PC that holds their pieces, over TLS."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Protocol

from meshinfer.core.fleet import FleetView
from meshinfer.core.ids import NodeId
from meshinfer.core.model import StageManifest
from meshinfer.errors import MeshInferError, PeerLost
from meshinfer.link.base import TRANSFER, Dialer, Link
from meshinfer.weights.store import Store
from meshinfer.weights.transfer import pull_stage
from meshinfer.wire.transfer import TransferHello

TRANSFER_VERSION = 1


class Fleet(Protocol):
    @property
    def view(self) -> FleetView: ...


class ShardSource:
    """Implements node.stage_keeper.Fetch."""

    def __init__(self, store: Store, dialer: Dialer, mesh: Fleet, executor: Executor) -> None:
        self._store = store
        self._dialer = dialer
        self._mesh = mesh
        self._executor = executor

    async def fetch(
        self,
        manifest: StageManifest,
        sources: tuple[NodeId, ...],
        tell: Callable[[int, int], None],
    ) -> Path:
        """The stage's folder, every byte checked against the manifest."""
        loop = asyncio.get_running_loop()
        folder = await loop.run_in_executor(
            self._executor, self._store.verified_folder, manifest.digest
        )
        if folder is not None:
            return folder
        others = [node for node in sources if node != self._mesh.view.me]
        return await pull_stage(
            manifest, [self._opener(node) for node in others], self._store, tell, self._executor
        )

    def _opener(self, node: NodeId) -> Callable[[], Awaitable[Link]]:
        async def open_link() -> Link:
            member = self._mesh.view.member(node)
            reason: MeshInferError = PeerLost("The PC that holds the stage is gone.")
            for address in member.agent_addresses if member else ():
                try:
                    link = await self._dialer.dial(address, TRANSFER, node)
                    await link.send(TransferHello(TRANSFER_VERSION))
                except MeshInferError as error:
                    reason = error
                else:
                    return link
            raise reason

        return open_link
