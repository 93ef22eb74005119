"""The agent's door for ring links: the first stage of a plan that this PC leads dials in here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from meshinfer.core.ids import NodeId
from meshinfer.errors import ProtocolViolation
from meshinfer.link.base import Link
from meshinfer.node.ring_ends import ExpectedConsumer, greeting
from meshinfer.serve.ring import RingFacts
from meshinfer.wire.ring import RingHello


class RingDesk:
    """Knows which consumers the running plan expects; refuses all others."""

    def __init__(self) -> None:
        self._expected: dict[RingHello, ExpectedConsumer] = {}

    async def accept(self, link: Link) -> None:
        """Handler of an incoming ring link. Raises ProtocolViolation for an unexpected one."""
        hello = await greeting(link)
        expected = self._expected.get(hello) if isinstance(hello, RingHello) else None
        if expected is None:
            raise ProtocolViolation("a ring link that no plan expects")
        await expected.welcome(link, hello)

    @contextmanager
    def expect(self, facts: RingFacts, edge: int, consumer: NodeId) -> Iterator[ExpectedConsumer]:
        """While in this scope, `consumer` may dial in for `edge`; leaving closes its link."""
        expected = ExpectedConsumer(facts, edge, consumer)
        self._expected[expected.hello] = expected
        try:
            yield expected
        finally:
            del self._expected[expected.hello]
            expected.release()
