"""`Mesh`: the async shell. Links, timers and the disk feed `FleetState`, and obey it.

What enters: links (dialled here, or given to `serve` by the listener) and hints where PCs may be.
What leaves: `view` and `watch` for whoever plans, and messages of other conversations through
`route` and `send`. Made and run by `node`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count

from meshinfer.core.fleet import Address, FleetView, Refusal
from meshinfer.core.ids import Epoch, NodeId, short
from meshinfer.core.together import together
from meshinfer.errors import MeshInferError, PeerLost, ProtocolViolation, VersionMismatch
from meshinfer.link.base import Dialer, Link, Received
from meshinfer.mesh import handshake
from meshinfer.mesh.acquaintances import Acquaintances
from meshinfer.mesh.dialling import Dialling
from meshinfer.mesh.executor import Executor
from meshinfer.mesh.fleet_state import STATE_MESSAGES, FleetState
from meshinfer.mesh.hints import Hint
from meshinfer.mesh.instructions import Instruction
from meshinfer.mesh.mail import Mail
from meshinfer.mesh.notice import Notice
from meshinfer.mesh.owned_tasks import OwnedTasks
from meshinfer.mesh.pause_watch import Pause, PauseWatch
from meshinfer.mesh.peer_link import PeerLink
from meshinfer.mesh.switchboard import Handler, Switchboard
from meshinfer.mesh.timing import MeshTiming
from meshinfer.mesh.view_change import ViewChanges
from meshinfer.mesh.violations import ViolationBook
from meshinfer.mesh.world import Me, World
from meshinfer.wire.hello import Introduction
from meshinfer.wire.membership import Goodbye, Peers, Superseded

log = logging.getLogger(__name__)


class Mesh:
    """One PC's membership of its fleet. `run` must be running for anything to happen.

    `seeds` are addresses that a person named, `hints` come from discovery. Reads the epoch and the
    known peers (two small files) when it is made.
    """

    def __init__(
        self,
        me: Me,
        dialer: Dialer,
        world: World,
        timing: MeshTiming | None = None,
        seeds: tuple[Address, ...] = (),
        hints: AsyncIterator[Hint] | None = None,
    ) -> None:
        self._me = me
        self._world = world
        self._timing = timing = timing or MeshTiming()
        now = world.clock()
        capacity = world.capacity()
        self._state = FleetState(me, world.epochs.load(), capacity, timing, world.random, now)
        self._versions = handshake.Versions(me.software, capacity.openvino)
        self._pauses = PauseWatch(timing, now, world.wall_clock())
        self._tasks = OwnedTasks()
        self._switchboard = Switchboard(self._tasks, self._blame)
        self._acquaintances = Acquaintances(me, world, timing, seeds, hints)
        queue = self._acquaintances.queue
        self._dialling = Dialling(dialer, queue, self._tasks, self, world.clock, timing.dial_s)
        self._links: dict[int, PeerLink] = {}
        self._numbers = count(1)
        self._order = Notice()  # a link ended or was superseded
        self._mail = Mail(self._links, self._state, self._order)
        self._changes = ViewChanges(self._state.view(now))
        self._violations = ViolationBook()
        self._executor = Executor(
            self._links, self._state.primary, self._start_persisting, self._redial
        )
        self._starts = 0  # incarnations of this run; a handshake of an older one is void
        self._leaving = False

    # What others see and use

    @property
    def view(self) -> FleetView:
        """The fleet now, with this PC."""
        return self._state.view(self._awake())

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        """Who was dialled or dialled here, and could not be worked with; the oldest first."""
        return self._acquaintances.refusals

    @property
    def violations(self) -> dict[NodeId, int]:
        """How often each PC broke a rule since this one started."""
        return self._violations.counts()

    def watch(self) -> AsyncIterator[FleetView]:
        """The view now, and the newest after each change of members, states, leader or epoch."""
        return self._changes.watch(lambda: self.view)

    def route(self, kind: type, handler: Handler) -> None:
        """Hand messages of `kind` to `handler(sender, message, payload)`, in order per PC."""
        self._switchboard.route(kind, handler)

    def accepts(self, epoch: Epoch, sender: NodeId) -> bool:
        """Whether this PC's lease belongs to `epoch` of `sender`: a plan of it may be obeyed."""
        return self._state.accepts(epoch, sender, self._awake())

    async def send(
        self, node: NodeId, message: object, payload: bytes | bytearray | memoryview = b""
    ) -> None:
        """Queue for a linked PC or, through the same handlers, for this one; waits for room.

        Raises PeerLost when there is no link. A link that breaks later loses what it holds.
        """
        self._awake()
        if node == self._me.node:
            self._switchboard.deliver(node, message, memoryview(payload))
            return
        await self._mail.send(node, message, payload)

    async def leave(self, reason: str) -> None:
        """Give up office, say goodbye to all and close the links. Takes at most `close_s`."""
        self._leaving = True
        self._do(self._state.leave(self._world.clock()))
        for link in list(self._links.values()):
            link.finish(reason, Goodbye(reason[:200]))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2 * self._timing.close_s):
                while self._links:
                    await self._order.wait()

    # What runs

    async def run(self) -> None:
        """Until cancelled. Raises what is a bug in one of its tasks."""
        self._state.begin(self._world.clock())
        self._pauses.notice(self._world.clock(), self._world.wall_clock())
        try:
            await together(
                self._tasks.first_bug(),
                self._tick(),
                self._acquaintances.listen(),
                self._acquaintances.remember(),
            )
        finally:
            self._leaving = True
            for link in self._links.values():
                link.finish("this PC stops")
            await self._tasks.close()

    async def serve(self, link: Link) -> None:
        """Run a link that another PC dialled until it ends. Never raises for what a peer did."""
        try:
            starts = self._starts
            if self._leaving:
                return  # before a word is said: the other side must not think that it has a link
            exchange = handshake.answer(link, self._versions, self._tell)
            told = await handshake.in_time(exchange, link, self._timing.hello_s)
            if not self._leaving:
                await self._converse(link, link.peer, told, starts)
        except VersionMismatch as error:
            self.refused(link.address, error)
        except ProtocolViolation as error:
            self._violations.note(link.peer, error.cause)
        except MeshInferError as error:
            log.debug("%s did not become a member: %s", link.address, error)
        finally:
            await link.close("it was refused or ended")

    async def greet(self, link: Link) -> Callable[[], Awaitable[None]]:
        """For `Dialling`: shake hands on a link that this PC dialled."""
        starts = self._starts
        drawn = self._world.random.getrandbits(48)
        exchange = handshake.greet(link, self._versions, self._tell, drawn)
        told = await handshake.in_time(exchange, link, self._timing.hello_s)
        if link.peer == self._me.node or self._leaving:
            raise PeerLost("This PC dialled itself, or is leaving.")
        return lambda: self._converse(link, self._me.node, told, starts)

    def unreachable(self, node: NodeId) -> None:
        """For `Dialling`."""
        self._do(self._state.redial_failed(node, self._world.clock()))

    def refused(self, address: Address, error: MeshInferError) -> None:
        """For `Dialling`, and for whoever was refused here."""
        refusal = Refusal(str(address), str(error), self._world.wall_clock())
        self._acquaintances.note_refusal(refusal)

    def _tell(self, drawn: int) -> Introduction:
        return self._state.introduction(drawn, self._awake())

    async def _converse(self, link: Link, dialler: NodeId, told: Introduction, starts: int) -> None:
        """From the handshake to the end of a link."""
        if starts != self._starts:
            await link.close("this PC slept meanwhile")
            return
        peer_link = PeerLink(next(self._numbers), link, self._timing.close_s)
        number = peer_link.number
        self._links[number] = peer_link
        now = self._awake()
        self._do(self._state.link_up(number, link.peer, dialler, told, now))
        self._do(self._acquaintances.met(link.peer, told, self._state, now))
        try:
            await peer_link.run(self._take)
        except ProtocolViolation as error:
            self._violations.note(link.peer, error.cause)
        except PeerLost as error:
            log.debug("link with %s ended: %s", short(link.peer), error)
        finally:
            del self._links[number]
            self._do(self._state.link_down(number, self._world.clock()))
            self._order.notify()

    # What happens

    async def _tick(self) -> None:
        """Time passes: the only timer of membership and election."""
        world = self._world
        due = world.clock()
        while True:
            due = max(due + self._timing.tick_s, world.clock())
            await asyncio.sleep(due - world.clock())
            now = self._awake()
            linked = self._state.linked()
            dialling = self._acquaintances.queue.is_trying(linked)
            self._state.report(world.capacity(), world.holds_model(), dialling)
            self._do(self._state.tick(now))
            self._do(self._acquaintances.tick(self._state, now))
            if not self._leaving:
                self._dialling.round(linked)

    def _awake(self) -> float:
        """The time; and if this PC slept, drop what it believed before anything is said."""
        now = self._world.clock()
        pause = self._pauses.notice(now, self._world.wall_clock())
        if pause is Pause.LAGGED:
            log.info("the event loop was %.1f s late", self._pauses.late_s)
            self._state.lagged(now)
        elif pause is Pause.SLEPT:
            log.warning("this PC slept or its clock was set: starting anew in the fleet")
            self._starts += 1
            members = self._state.view(now).members
            self._do(self._state.woke(now))
            self._state.restart(self._world.next_incarnation())
            for member in members:
                self._acquaintances.queue.hint(member.node, member.agent_addresses, now, fresh=True)
        return now

    async def _take(self, link: PeerLink, received: Received) -> None:
        """One message of an established link."""
        message = received.message
        now = self._awake()
        sender = self._state.owner(link.number)
        if sender is None:
            return  # closed already; what was on its way does not count
        if isinstance(message, STATE_MESSAGES):
            if isinstance(message, Goodbye):
                log.info("%s leaves: %s", short(sender), message.reason[:200])
                self._acquaintances.queue.rest(sender, now)
            self._do(self._state.received(link.number, message, now))
            if isinstance(message, Superseded):
                self._order.notify()
        elif isinstance(message, Peers):
            self._acquaintances.heard_of(message, now)
        else:
            await self._mail.wait_for_turn(link.number, self._timing.supersede_s)
            self._switchboard.deliver(sender, message, received.payload)

    def _do(self, instructions: list[Instruction]) -> None:
        self._executor.do(instructions)
        self._changes.look(self._state.view(self._world.clock()))

    def _redial(self, node: NodeId) -> None:
        if not self._leaving:
            self._dialling.redial(node, self._state.addresses(node), self._state.linked())

    def _start_persisting(self, epoch: Epoch) -> None:
        self._tasks.start(self._persist(epoch))

    async def _persist(self, epoch: Epoch) -> None:
        try:
            await asyncio.to_thread(self._world.epochs.save, epoch)
        except MeshInferError as error:
            log.error("epoch %s is not on disk: %s", epoch, error)
            self._state.not_persisted(epoch, self._world.clock())
        else:
            self._do(self._state.persisted(epoch, self._awake()))

    def _blame(self, node: NodeId, cause: str) -> None:
        """A handler found that `node` broke a rule: that costs its links."""
        self._violations.note(node, cause)
        for link in self._links.values():
            if link.peer == node:
                link.finish("it broke a rule")
