"""Whom this PC knows of: hints, exchanges and memory feed the dial queue; why it is alone.

Part of the runner's shell: it owns the queue, the list of known peers and their file.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator
from dataclasses import replace

from meshinfer.core.fleet import Address, Refusal
from meshinfer.core.ids import FleetId, NodeId, short
from meshinfer.mesh.dial_queue import DialQueue
from meshinfer.mesh.fleet_state import FleetState
from meshinfer.mesh.hints import Hint, OtherFleet, PeerFound
from meshinfer.mesh.instructions import Instruction, Send
from meshinfer.mesh.known_peers import MOST_KNOWN
from meshinfer.mesh.solitude import Situation, likely_causes
from meshinfer.mesh.timing import MeshTiming
from meshinfer.mesh.world import Me, World
from meshinfer.wire.hello import Introduction
from meshinfer.wire.membership import MOST_PEERS, KnownPeer, Peers

_REFUSALS_KEPT = 32
_FLEETS_KEPT = 64
_ADDRESSES_TOLD = 8  # of one PC in an exchange: 64 PCs fit the message's limit

log = logging.getLogger(__name__)


class Acquaintances:
    """Not asked for anything but by its Mesh."""

    def __init__(
        self,
        me: Me,
        world: World,
        timing: MeshTiming,
        seeds: tuple[Address, ...],
        hints: AsyncIterator[Hint] | None,
    ) -> None:
        now = world.clock()
        self._me = me
        self._world = world
        self._timing = timing
        self._hints = hints
        self._known = dict(world.known_peers.load())
        self._known_changed = False
        self._found: set[NodeId] = set()
        self._fleets: set[FleetId] = set()
        self._refusals: OrderedDict[tuple[str, str], Refusal] = OrderedDict()
        self._exchanged_at = now
        self._alone_since: float | None = now
        self.queue = DialQueue(
            me.node, (one.host for one in me.agent_addresses), timing, world.random
        )
        for address in seeds:
            self.queue.seed(address, now)
        for node, addresses in self._known.items():
            self.queue.hint(node, addresses, now)

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        return tuple(self._refusals.values())

    def note_refusal(self, refusal: Refusal) -> None:
        key = (refusal.address.rpartition(":")[0], refusal.reason)
        known = self._refusals.pop(key, None)
        counted = replace(refusal, count=known.count + 1 if known else 1)
        self._refusals[key] = counted
        if len(self._refusals) > _REFUSALS_KEPT:
            self._refusals.popitem(last=False)
        if counted.count == 1 or counted.count % 100 == 0:
            log.warning("no link with %s (%d): %s", refusal.address, counted.count, refusal.reason)

    def met(
        self, node: NodeId, told: Introduction, state: FleetState, now: float
    ) -> list[Instruction]:
        """A link with `node` is up: remember it, tell it of the others and them of it."""
        self._alone_since = None
        self.queue.hint(node, told.agent_addresses, now)
        addresses = self.queue.addresses(node)
        self._known.pop(node, None)
        self._known[node] = addresses
        while len(self._known) > MOST_KNOWN:
            del self._known[next(iter(self._known))]
        self._known_changed = True
        newcomer = Peers((KnownPeer(node, addresses[:_ADDRESSES_TOLD]),))
        others = sorted(state.linked() - {node})
        if not others:
            return []
        return [Send(node, self._peers(state)), *(Send(other, newcomer) for other in others)]

    def heard_of(self, message: Peers, now: float) -> None:
        for peer in message.known:
            self.queue.hint(peer.node, peer.addresses, now)

    def tick(self, state: FleetState, now: float) -> list[Instruction]:
        linked = state.linked()
        self._watch_solitude(bool(linked), now)
        if now - self._exchanged_at < self._timing.exchange_s or len(linked) < 2:
            return []
        self._exchanged_at = now
        message = self._peers(state)
        return [Send(node, message) for node in sorted(linked)]

    async def listen(self) -> None:
        """Take hints until there are no more."""
        if self._hints is None:
            return
        async for hint in self._hints:
            match hint:
                case PeerFound(node, _, addresses):
                    if len(self._found) < 256:
                        self._found.add(node)
                    self.queue.hint(node, addresses, self._world.clock(), fresh=True)
                case OtherFleet(fleet) if len(self._fleets) < _FLEETS_KEPT:
                    self._fleets.add(fleet)
                case _:
                    pass  # an announcement that ended says nothing about the PC

    async def remember(self) -> None:
        """Keep the file of known peers up to date."""
        while True:
            await asyncio.sleep(self._timing.remember_s)
            if self._known_changed:
                self._known_changed = False
                await asyncio.to_thread(self._world.known_peers.save, dict(self._known))

    def _peers(self, state: FleetState) -> Peers:
        linked = sorted(state.linked())[:MOST_PEERS]
        return Peers(
            tuple(KnownPeer(node, self.queue.addresses(node)[:_ADDRESSES_TOLD]) for node in linked)
        )

    def _watch_solitude(self, accompanied: bool, now: float) -> None:
        """Say once, each time this PC is alone for long, why that may be."""
        if accompanied:
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = now
        elif 0 <= now - self._alone_since >= self._timing.alone_s:
            self._alone_since = float("inf")
            for cause in likely_causes(self._situation()):
                log.warning("%s is alone: %s", short(self._me.node), cause)

    def _situation(self) -> Situation:
        return Situation(
            self._me.agent_addresses,
            self._hints is not None,
            len(self._found),
            len(self._fleets),
            tuple(str(target) for target in self.queue.failing()),
            sum(one.count for one in self._refusals.values()),
        )
