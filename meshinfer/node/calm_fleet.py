"""The fleet whenever it has been calm for a while: a plan made amid joins would be made twice."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Protocol

from meshinfer.core.fleet import FleetView, MemberState


class Watchable(Protocol):
    @property
    def view(self) -> FleetView: ...

    def watch(self) -> AsyncIterator[FleetView]: ...


class CalmFleet:
    """`calm_s` without a change of members or of their states, then again after `recheck_s`."""

    def __init__(self, mesh: Watchable, calm_s: float, recheck_s: float) -> None:
        self._mesh = mesh
        self._calm_s = calm_s
        self._recheck_s = recheck_s
        self._changed = asyncio.Event()

    async def views(self) -> AsyncGenerator[FleetView, None]:
        watcher = asyncio.create_task(self._watch())
        try:
            while True:
                while await self._changes_within(self._calm_s):
                    pass
                yield self._mesh.view
                await self._changes_within(self._recheck_s)
        finally:
            watcher.cancel()
            await asyncio.wait([watcher])

    async def _changes_within(self, seconds: float) -> bool:
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        return self._changed.is_set()

    async def _watch(self) -> None:
        known = identities(self._mesh.view)
        async for view in self._mesh.watch():
            if identities(view) != known:
                known = identities(view)
                self._changed.set()


def identities(view: FleetView) -> frozenset[tuple[str, str, int]]:
    """Who is there, in what state, with how many known devices: what a plan depends on."""
    return frozenset(
        (member.node, member.state.value, len(member.capacity.devices)) for member in view.members
    )


def unmeasured(view: FleetView) -> bool:
    """A living PC has not told yet what its devices can: a plan now would be made without it."""
    return any(
        member.state is MemberState.ALIVE and not member.capacity.devices for member in view.members
    )
