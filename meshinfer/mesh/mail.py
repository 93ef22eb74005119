"""Messages of other conversations on the links of a PC: in order, with room, on the right link.

Made by the runner, whose tables and notice it shares.
"""

from __future__ import annotations

import asyncio
import logging

from meshinfer.core.ids import NodeId, short
from meshinfer.errors import PeerLost
from meshinfer.mesh.fleet_state import FleetState
from meshinfer.mesh.notice import Notice
from meshinfer.mesh.peer_link import PeerLink

log = logging.getLogger(__name__)


class Mail:
    """`order` is notified when a link ended or was superseded."""

    def __init__(self, links: dict[int, PeerLink], state: FleetState, order: Notice) -> None:
        self._links = links
        self._state = state
        self._order = order

    async def send(
        self, node: NodeId, message: object, payload: bytes | bytearray | memoryview
    ) -> None:
        """Queue for a linked PC; waits for room. Raises PeerLost when there is no link."""
        while True:
            number = self._state.primary(node)
            link = self._links.get(number) if number is not None else None
            if link is None:
                raise PeerLost(f"PC {short(node)} is not linked.", "Wait until it is back.")
            if await link.outbox.put(message, payload):
                return
            if self._state.primary(node) == number and number in self._links:
                await self._order.wait()  # it ends; or else another link took its place

    async def wait_for_turn(self, number: int, patience_s: float) -> None:
        """Until nothing older can come on another link of the same PC."""
        try:
            async with asyncio.timeout(patience_s):
                while self._state.must_wait(number):
                    await self._order.wait()
        except TimeoutError:
            log.debug("a superseded link did not end in time")
