"""A PC's addresses are tried one after another; the one that works is kept (J04)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

from meshinfer.core.fleet import Address
from meshinfer.core.ids import NodeId
from meshinfer.errors import MeshInferError, PeerLost, TrustRefused, VersionMismatch
from meshinfer.link.base import Link
from meshinfer.link.memory import memory_pair
from meshinfer.mesh.dial_queue import DialQueue
from meshinfer.mesh.dialling import Dialling
from meshinfer.mesh.owned_tasks import OwnedTasks
from meshinfer.mesh.timing import MeshTiming
from tests.mesh.virtual_time import run_virtual

ME, PEER = NodeId("me"), NodeId("peer")
HOSTS = ("127.0.0.1", "172.17.0.1", "10.255.255.254", "100.64.0.5", "192.168.1.20")
ADDRESSES = tuple(Address(host, 7000) for host in HOSTS)
GOOD = ADDRESSES[-1]


class Lan:
    """Dialer and Caller in one: answers are per address; silence when there is none."""

    def __init__(self, answers: dict[Address, NodeId | MeshInferError]) -> None:
        self.answers = answers
        self.dialled: list[Address] = []
        self.ran: list[NodeId] = []
        self.connected = asyncio.Event()
        self.lost: list[NodeId] = []
        self.refusals: list[Address] = []
        self.tasks = OwnedTasks()
        self.queue = DialQueue(ME, [], MeshTiming(), Random(0))
        self.clock = asyncio.get_running_loop().time
        self.dialling = Dialling(self, self.queue, self.tasks, self, self.clock, 1.0)
        self.greeting: MeshInferError | None = None

    async def dial(self, address: Address, channel: str, expect: NodeId | None) -> Link:
        self.dialled.append(address)
        answer = self.answers.get(address)
        if answer is None:
            await asyncio.Event().wait()
        if isinstance(answer, MeshInferError):
            raise answer
        return memory_pair(channel, ME, answer or PEER)[0]

    async def greet(self, link: Link) -> Callable[[], Awaitable[None]]:
        if self.greeting is not None:
            raise self.greeting

        async def run() -> None:
            self.ran.append(link.peer)
            self.connected.set()

        return run

    def unreachable(self, node: NodeId) -> None:
        self.lost.append(node)

    def refused(self, address: Address, error: MeshInferError) -> None:
        self.refusals.append(address)

    async def round(self, seconds: float = 10.0) -> None:
        self.dialling.round(frozenset())
        await asyncio.sleep(seconds)


def test_the_reachable_one_of_five_is_found_and_kept() -> None:
    async def main() -> None:
        answers: dict[Address, NodeId | MeshInferError] = {
            GOOD: PEER,
            ADDRESSES[0]: TrustRefused("that is another agent on this PC"),
        }
        lan = Lan(answers)
        lan.queue.hint(PEER, ADDRESSES, lan.clock())
        await lan.round()
        assert lan.ran == [PEER]
        assert lan.queue.addresses(PEER)[0] == GOOD

    run_virtual(main())


def test_silent_addresses_cost_a_second_each() -> None:
    async def main() -> None:
        lan = Lan({ADDRESSES[0]: PEER})  # loopback is tried last
        lan.queue.hint(PEER, ADDRESSES, lan.clock())
        begun = lan.clock()
        lan.dialling.round(frozenset())
        await lan.connected.wait()
        assert 3.9 < lan.clock() - begun < 4.2
        assert lan.dialled[-1] == ADDRESSES[0]

    run_virtual(main())


def test_nobody_answers() -> None:
    async def main() -> None:
        lan = Lan({address: PeerLost("nobody") for address in ADDRESSES})
        lan.queue.hint(PEER, ADDRESSES, lan.clock())
        await lan.round(0.5)
        assert lan.lost == [PEER]
        assert len(lan.dialled) == 5
        await lan.round(0.1)
        assert len(lan.dialled) == 5, "not again at once"
        await asyncio.sleep(1.0)
        await lan.round(0.1)
        assert len(lan.dialled) == 10

    run_virtual(main())


def test_one_refusal_among_silence_is_tried_again_soon_but_refusals_only_are_not() -> None:
    async def main() -> None:
        for refused, again in ((ADDRESSES[:1], True), (ADDRESSES, False)):
            answers: dict[Address, NodeId | MeshInferError] = {
                address: TrustRefused("not of this fleet")
                if address in refused
                else PeerLost("nobody")
                for address in ADDRESSES
            }
            lan = Lan(answers)
            lan.queue.hint(PEER, ADDRESSES, lan.clock())
            await lan.round(3.0)
            await lan.round(1.0)
            assert (len(lan.dialled) == 10) is again
            assert set(lan.refusals) == set(refused)

    run_virtual(main())


def test_a_handshake_that_fails_closes_the_link() -> None:
    async def main() -> None:
        lan = Lan({GOOD: PEER})
        lan.greeting = VersionMismatch("older")
        lan.queue.hint(PEER, [GOOD], lan.clock())
        await lan.round()
        assert lan.refusals == [GOOD]
        assert lan.lost == [PEER]
        assert lan.ran == []

    run_virtual(main())


def test_two_pcs_that_close_each_others_links_do_not_dial_without_a_pause() -> None:
    async def main() -> None:
        lan = Lan({GOOD: PEER})
        begun = lan.clock()
        while lan.clock() - begun < 10.0:
            lan.dialling.redial(PEER, (GOOD,), frozenset())
            lan.dialling.round(frozenset())
            await asyncio.sleep(0.01)
        assert 5 <= len(lan.dialled) <= 22

    run_virtual(main())
