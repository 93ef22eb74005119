"""Acts on the dial queue: tries a PC's addresses one after another and hands on what answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from meshinfer.core.fleet import Address
from meshinfer.core.ids import NodeId
from meshinfer.errors import MeshInferError, TimedOut, TrustRefused, VersionMismatch
from meshinfer.link.base import MESH, Dialer, Link
from meshinfer.mesh.dial_queue import DialQueue, Target
from meshinfer.mesh.owned_tasks import OwnedTasks

log = logging.getLogger(__name__)


class Caller(Protocol):
    """Who wants the links."""

    async def greet(self, link: Link) -> Callable[[], Awaitable[None]]:
        """Shake hands; what it returns runs the link until it ends. Raises MeshInferError."""
        ...

    def unreachable(self, node: NodeId) -> None:
        """None of the addresses of `node` answered."""
        ...

    def refused(self, address: Address, error: MeshInferError) -> None:
        """Somebody is there with whom this PC cannot work."""
        ...


class Dialling:
    """`dial_s` is the patience with one address."""

    def __init__(
        self,
        dialer: Dialer,
        queue: DialQueue,
        tasks: OwnedTasks,
        caller: Caller,
        clock: Callable[[], float],
        dial_s: float,
    ) -> None:
        self._dialer = dialer
        self._queue = queue
        self._tasks = tasks
        self._caller = caller
        self._clock = clock
        self._dial_s = dial_s

    def redial(
        self, node: NodeId, addresses: tuple[Address, ...], linked: frozenset[NodeId]
    ) -> None:
        """The link with `node` broke: dial as soon as the queue allows."""
        self._queue.hint(node, addresses, self._clock(), fresh=True)
        self.round(linked)

    def round(self, linked: frozenset[NodeId]) -> None:
        """Start to dial whoever is due."""
        for target in self._queue.due(linked, self._clock()):
            self._tasks.start(self._dial(target))

    async def _dial(self, target: Target) -> None:
        refusals = 0
        for address in target.addresses:
            try:
                run = await self._try(target, address)
            except (TrustRefused, VersionMismatch) as error:
                refusals += 1
                self._caller.refused(address, error)
            except MeshInferError as error:
                log.debug("%s did not answer: %s", address, error)
            else:
                await run()
                return
        # One wrong PC among several addresses (a bridge, a neighbour's VPN) is no refusal.
        refused = refusals == len(target.addresses)
        self._queue.failed(target, self._clock(), refused=refused)
        if target.node is not None:
            self._caller.unreachable(target.node)

    async def _try(self, target: Target, address: Address) -> Callable[[], Awaitable[None]]:
        """A link that has shaken hands. The target is free for redialling once it is used."""
        try:
            async with asyncio.timeout(self._dial_s):
                link = await self._dialer.dial(address, MESH, expect=target.node)
        except TimeoutError as error:
            raise TimedOut(f"Nobody answered at {address} in {self._dial_s:g} s.") from error
        try:
            run = await self._caller.greet(link)
        except BaseException:
            await link.close("no agreement")
            raise
        self._queue.reached(target, link.peer, address, self._clock())
        return run
