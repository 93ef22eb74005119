"""What of a view is worth waking a watcher for, and the watchers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from meshinfer.core.fleet import FleetView
from meshinfer.mesh.notice import Notice


def outline(view: FleetView) -> object:
    """Equal for two views with the same members, starts, states, leader and epoch.

    Free memory changes all the time; who needs it reads it when it plans.
    """
    members = tuple(
        (one.node, one.state, one.joined_at_s, one.name, one.holds_model) for one in view.members
    )
    return (members, view.epoch, view.leader)


class ViewChanges:
    """Wakes whoever watches when the outline of the view is another one."""

    def __init__(self, view: FleetView) -> None:
        self._outline = outline(view)
        self._changed = Notice()

    def look(self, view: FleetView) -> None:
        now = outline(view)
        if now != self._outline:
            self._outline = now
            self._changed.notify()

    async def watch(self, view: Callable[[], FleetView]) -> AsyncIterator[FleetView]:
        """The view now, and the newest after each change. Changes that a slow reader missed are
        one change to it."""
        seen: object = None
        while True:
            newest = view()
            if outline(newest) != seen:
                seen = outline(newest)
                yield newest
            else:
                await self._changed.wait()
