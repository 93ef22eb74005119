"""Messages reach whoever asked for them, in order per PC."""

from __future__ import annotations

import asyncio

import pytest

from meshinfer.core.ids import NodeId
from meshinfer.errors import NotReady, ProtocolViolation
from meshinfer.mesh.owned_tasks import OwnedTasks
from meshinfer.mesh.switchboard import MOST_WAITING, Switchboard
from meshinfer.wire.forward import AskCancel, FleetReport
from tests.mesh.virtual_time import run_virtual

A, B = NodeId("a"), NodeId("b")
NOTHING = memoryview(b"")


class Desk:
    """A switchboard and what it did."""

    def __init__(self) -> None:
        self.tasks = OwnedTasks()
        self.blamed: list[tuple[NodeId, str]] = []
        self.board = Switchboard(self.tasks, lambda node, cause: self.blamed.append((node, cause)))
        self.heard: list[tuple[NodeId, str]] = []

    def hear(self, sender: NodeId, message: FleetReport, payload: memoryview) -> None:
        self.heard.append((sender, message.document))


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_order_is_kept_per_pc_and_a_slow_one_does_not_hold_up_others() -> None:
    async def main() -> None:
        desk = Desk()
        release = asyncio.Event()

        async def slow(sender: NodeId, message: FleetReport, payload: memoryview) -> None:
            if sender == A:
                await release.wait()
            desk.hear(sender, message, payload)

        desk.board.route(FleetReport, slow)
        for number in range(3):
            desk.board.deliver(A, FleetReport(str(number)), NOTHING)
            desk.board.deliver(B, FleetReport(str(number)), NOTHING)
        await settle()
        assert desk.heard == [(B, "0"), (B, "1"), (B, "2")]
        release.set()
        await settle()
        assert desk.heard[3:] == [(A, "0"), (A, "1"), (A, "2")]
        await desk.tasks.close()

    run_virtual(main())


def test_nothing_is_handled_while_it_is_delivered() -> None:
    async def main() -> None:
        desk = Desk()
        desk.board.route(FleetReport, desk.hear)
        desk.board.deliver(A, FleetReport("1"), NOTHING)
        assert desk.heard == []
        await settle()
        assert desk.heard == [(A, "1")]

    run_virtual(main())


def test_a_kind_without_a_handler_is_dropped_and_one_has_only_one() -> None:
    async def main() -> None:
        desk = Desk()
        desk.board.deliver(A, FleetReport("1"), NOTHING)
        desk.board.route(FleetReport, desk.hear)
        await settle()
        assert desk.heard == []
        with pytest.raises(ValueError, match="FleetReport"):
            desk.board.route(FleetReport, desk.hear)

    run_virtual(main())


@pytest.mark.parametrize(
    ("error", "blamed"),
    [
        pytest.param(ProtocolViolation("wrong plan"), True, id="a violation"),
        pytest.param(NotReady("not yet"), False, id="an ordinary refusal"),
        pytest.param(ZeroDivisionError(), True, id="a bug that a message brought out"),
    ],
)
def test_what_a_handler_raises(error: Exception, blamed: bool) -> None:
    async def main() -> None:
        desk = Desk()

        def failing(*_: object) -> None:
            raise error

        desk.board.route(AskCancel, failing)
        desk.board.route(FleetReport, desk.hear)
        desk.board.deliver(A, AskCancel("1"), NOTHING)  # type: ignore[arg-type]
        desk.board.deliver(A, FleetReport("next"), NOTHING)
        await settle()
        assert [node for node, _ in desk.blamed] == [A] * blamed
        assert desk.heard == [(A, "next")], "the next message is handled"

    run_virtual(main())


def test_a_pc_far_ahead_of_its_handlers_is_told() -> None:
    async def main() -> None:
        desk = Desk()
        release = asyncio.Event()

        async def slow(*_: object) -> None:
            await release.wait()

        desk.board.route(FleetReport, slow)
        for _ in range(MOST_WAITING):
            desk.board.deliver(A, FleetReport("{}"), NOTHING)
        with pytest.raises(ProtocolViolation):
            desk.board.deliver(A, FleetReport("{}"), NOTHING)
        desk.board.deliver(B, FleetReport("{}"), NOTHING)
        await desk.tasks.close()

    run_virtual(main())
