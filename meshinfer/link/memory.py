"""Links inside one process: the twin of `link.websocket`, with faults on demand.

Messages go through `wire.registry` both ways, so sizes, limits and checksums are the real ones.
Tests of everything above links run on it; it ships because it is part of the contract, and
`tests/contracts/test_link.py` holds it to the same suite as the websocket.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

from meshinfer.core.fleet import Address
from meshinfer.core.ids import NodeId, short
from meshinfer.errors import MeshInferError, PeerLost, ProtocolViolation, TrustRefused
from meshinfer.link.base import MESH, Link, Received
from meshinfer.link.clock import Clock, LoopClock, sleep
from meshinfer.link.memory_pipe import Direction, Pipe
from meshinfer.wire import registry

Handler = Callable[[Link], Awaitable[None]]

CONNECT_TIMEOUT_S = 3.0
_DIALER = NodeId("dialer")
_SERVER = NodeId("server")
_OWN_CLOSE = "This PC closed the link."
_log = logging.getLogger(__name__)


class MemoryLink:
    """One end. `outgoing` and `incoming` are the controls of the two directions."""

    def __init__(
        self, channel: str, me: NodeId, peer: NodeId, address: Address, out: Pipe, back: Pipe
    ) -> None:
        self._welcome = registry.welcome(channel)
        self._me = me
        self._peer = peer
        self._address = address
        self._out = out
        self._back = back
        self._closed = False

    @property
    def owner(self) -> NodeId:
        """The PC whose end this is."""
        return self._me

    @property
    def peer(self) -> NodeId:
        return self._peer

    @property
    def address(self) -> Address:
        return self._address

    @property
    def outgoing(self) -> Direction:
        return self._out.direction

    @property
    def incoming(self) -> Direction:
        return self._back.direction

    @property
    def closed(self) -> bool:
        """Whether this end closed, or has seen the other end close."""
        return self._closed or self._back.ended is not None

    async def send(self, message: object, payload: bytes | bytearray | memoryview = b"") -> None:
        frame = registry.pack(message, payload)
        self._raise_if_closed()
        await self._out.put(frame)
        self._raise_if_closed()

    async def receive(self) -> Received:
        frame = await self._back.get()
        try:
            return Received(*registry.unpack(frame, self._welcome))
        except ProtocolViolation as error:
            await self.close(error.cause)
            raise

    async def close(self, reason: str = "") -> None:
        if self._closed:
            return
        self._closed = True
        self._out.end(f"PC {short(self._me)} closed the link. {reason}".strip())
        self._back.shut(_OWN_CLOSE)

    def _raise_if_closed(self) -> None:
        if self.closed:
            raise PeerLost(self._back.ended or _OWN_CLOSE)


def memory_pair(
    channel: str = MESH,
    dialer: NodeId = _DIALER,
    server: NodeId = _SERVER,
    clock: Clock | None = None,
) -> tuple[MemoryLink, MemoryLink]:
    """Two joined ends: the dialling PC's and the serving PC's."""
    return _join(
        channel,
        (dialer, Address("memory", 1)),
        (server, Address("memory", 2)),
        (Direction(), Direction()),
        clock or LoopClock(),
    )


def _join(
    channel: str,
    first: tuple[NodeId, Address],
    second: tuple[NodeId, Address],
    directions: tuple[Direction, Direction],
    clock: Clock,
) -> tuple[MemoryLink, MemoryLink]:
    there, back = (Pipe(direction, clock) for direction in directions)
    return (
        MemoryLink(channel, first[0], second[0], second[1], there, back),
        MemoryLink(channel, second[0], first[0], first[1], back, there),
    )


@dataclass(frozen=True, slots=True)
class _Listener:
    node: NodeId
    handlers: Mapping[str, Handler]


class MemoryNetwork:
    """A LAN of PCs in one process. Owns the tasks of the handlers; `close()` ends and awaits them.

    Controls: `direction(a, b)` for one way between two PCs, `cut`, `heal`, `partition` and `kill`.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or LoopClock()
        self._listeners: dict[Address, _Listener] = {}
        self._directions: dict[tuple[NodeId, NodeId], Direction] = {}
        self._links: list[MemoryLink] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._bugs: list[Exception] = []

    def listen(
        self, address: Address, node: NodeId, handlers: Mapping[str, Handler]
    ) -> Callable[[], None]:
        """Let `node` be dialled at `address`; one handler a channel. Call the result to stop."""
        listener = _Listener(node, handlers)
        self._listeners[address] = listener

        def stop() -> None:
            if self._listeners.get(address) is listener:
                del self._listeners[address]

        return stop

    def dialer(self, node: NodeId, address: Address) -> MemoryDialer:
        """What `node`, seen by others at `address`, dials with."""
        return MemoryDialer(self, node, address)

    def direction(self, source: NodeId, target: NodeId) -> Direction:
        """The controls of the way from `source` to `target`, for all links, old and new."""
        return self._directions.setdefault((source, target), Direction())

    def cut(self, source: NodeId, target: NodeId) -> None:
        """One way goes silent."""
        self.direction(source, target).cut = True

    def heal(self, source: NodeId, target: NodeId) -> None:
        self.direction(source, target).cut = False

    def partition(self, *groups: Iterable[NodeId]) -> None:
        """PCs hear only their own group, until the next `partition`; one group heals all."""
        sides = [set(group) for group in groups]
        everyone = set().union(*sides)
        for source in everyone:
            for target in everyone - {source}:
                together = any(source in side and target in side for side in sides)
                self.direction(source, target).cut = not together

    async def kill(self, node: NodeId) -> None:
        """The process of `node` dies: its ports close and its peers see that at once."""
        for address, listener in list(self._listeners.items()):
            if listener.node == node:
                del self._listeners[address]
        for link in [link for link in self._links if link.owner == node]:
            await link.close("its process ended")
        self._links = [link for link in self._links if not link.closed]

    async def close(self) -> None:
        """Close all links, cancel and await all handlers. Raises what handlers raised as bugs."""
        self._listeners.clear()
        for link in self._links:
            await link.close("the network is closed")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._bugs:
            raise ExceptionGroup("handlers failed", self._bugs)

    async def connect(
        self, caller: tuple[NodeId, Address], address: Address, channel: str, expect: NodeId | None
    ) -> MemoryLink:
        """What MemoryDialer.dial does."""
        listener = self._listeners.get(address)
        if listener is None or channel not in listener.handlers:
            raise PeerLost(f"Nobody answers at {address}.")
        out = self.direction(caller[0], listener.node)
        back = self.direction(listener.node, caller[0])
        if out.cut or back.cut:
            await sleep(self.clock, CONNECT_TIMEOUT_S)
            raise PeerLost(f"Nobody answered at {address} in {CONNECT_TIMEOUT_S:g} s.")
        if expect is not None and listener.node != expect:
            raise TrustRefused(
                f"The PC at {address} is {short(listener.node)}, not {short(expect)}."
            )
        near, far = _join(channel, caller, (listener.node, address), (out, back), self.clock)
        self._links = [link for link in self._links if not link.closed] + [near, far]
        self._own(asyncio.create_task(self._serve(listener.handlers[channel], far)))
        return near

    def _own(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, handler: Handler, link: MemoryLink) -> None:
        try:
            await handler(link)
        except MeshInferError as error:
            _log.info("link with %s ended: %s", short(link.peer), error)
        except Exception as error:  # outermost frame of the handler's task; `close` raises it
            _log.exception("the handler of a link with %s failed", short(link.peer))
            self._bugs.append(error)
        finally:
            await link.close("its handler is done")


class MemoryDialer:
    """`Dialer` of one PC of a MemoryNetwork."""

    def __init__(self, network: MemoryNetwork, node: NodeId, address: Address) -> None:
        self._network = network
        self._caller = (node, address)

    async def dial(self, address: Address, channel: str, expect: NodeId | None) -> Link:
        return await self._network.connect(self._caller, address, channel, expect)

    async def close(self) -> None:
        """Nothing to release: links belong to the network."""
