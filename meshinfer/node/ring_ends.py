"""Both ends of a ring link: the consumer dials its producer and says which edge it is.

Activations then flow from server to client, which websockets do not mask (1.8 times faster at 4 MB,
facts A3), and each PC needs one open port for its stages.
"""

from __future__ import annotations

import asyncio
import logging

from meshinfer.core.fleet import Address
from meshinfer.core.ids import NodeId
from meshinfer.errors import MeshInferError, PeerLost, ProtocolViolation, TimedOut
from meshinfer.link.base import RING, Dialer, Link
from meshinfer.serve.ring import RingFacts
from meshinfer.wire.ring import RingHello, RingWelcome

JOIN_TIMEOUT_S = 15.0
GREETING_TIMEOUT_S = 5.0
_RETRY_S = 0.1

log = logging.getLogger(__name__)


class ExpectedConsumer:
    """A producer's side of one edge: waits for the one PC that may consume it."""

    def __init__(self, facts: RingFacts, edge: int, consumer: NodeId) -> None:
        self._hello = RingHello(facts.epoch, facts.plan, facts.pipeline, edge)
        self._consumer = consumer
        self._link: asyncio.Future[Link] = asyncio.get_running_loop().create_future()
        self._ended = asyncio.Event()

    @property
    def hello(self) -> RingHello:
        return self._hello

    async def accept(self, link: Link) -> None:
        """Handler of an incoming ring link; returns when the link may be closed."""
        await self.welcome(link, await greeting(link))

    async def welcome(self, link: Link, hello: object) -> None:
        """Greet the expected consumer and keep the link open until `release`."""
        if hello != self._hello or link.peer != self._consumer:
            raise ProtocolViolation("a ring link that no plan expects")
        if self._link.done():
            raise ProtocolViolation("a second consumer for one edge")
        await link.send(RingWelcome(self._hello.plan))
        self._link.set_result(link)
        await self._ended.wait()

    async def link(self) -> Link:
        """The consumer's link. Raises TimedOut."""
        try:
            async with asyncio.timeout(JOIN_TIMEOUT_S):
                return await asyncio.shield(self._link)
        except TimeoutError as error:
            raise TimedOut(
                f"The next PC of the ring did not connect within {JOIN_TIMEOUT_S:.0f} s.",
                "Open the stage port in its neighbour's firewall.",
            ) from error

    def release(self) -> None:
        """Let `welcome` return, which closes the link. Idempotent."""
        self._ended.set()
        if not self._link.done():
            self._link.cancel()


async def greeting(link: Link) -> object:
    """The first message of an incoming ring link. Raises TimedOut for a silent one."""
    try:
        async with asyncio.timeout(GREETING_TIMEOUT_S):
            return (await link.receive()).message
    except TimeoutError as error:
        raise TimedOut("A ring link said nothing.") from error


def expect_consumer(facts: RingFacts, edge: int, consumer: NodeId) -> ExpectedConsumer:
    """The producer's side of `edge`, open to `consumer` only."""
    return ExpectedConsumer(facts, edge, consumer)


async def consume(
    dialer: Dialer,
    facts: RingFacts,
    edge: int,
    producer: NodeId,
    addresses: tuple[Address, ...],
) -> Link:
    """A greeted link to the producer of `edge`; its addresses are tried in turn.

    Raises TimedOut that names the last reason.
    """
    reason: MeshInferError = PeerLost("it has no address")
    try:
        async with asyncio.timeout(JOIN_TIMEOUT_S):
            while True:
                for address in addresses:
                    try:
                        return await _greet(dialer, facts, edge, producer, address)
                    except MeshInferError as error:
                        reason = error
                await asyncio.sleep(_RETRY_S)
    except TimeoutError as error:
        raise TimedOut(
            f"Stage {edge - 1 if edge else 'source'} at {', '.join(map(str, addresses))} could not "
            f"be reached: {reason.cause}",
            "Open the stage port in that PC's firewall.",
        ) from error


async def _greet(
    dialer: Dialer, facts: RingFacts, edge: int, producer: NodeId, address: Address
) -> Link:
    link = await dialer.dial(address, RING, producer)
    try:
        await link.send(RingHello(facts.epoch, facts.plan, facts.pipeline, edge))
        received = await link.receive()
        if received.message != RingWelcome(facts.plan):
            raise ProtocolViolation("no welcome on a ring link")
    except BaseException:
        await link.close("not welcome")
        raise
    return link
