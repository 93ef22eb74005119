"""What wakes a watcher."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshinfer.core.fleet import Capacity, FleetView, Member, MemberState
from meshinfer.core.ids import Epoch, NodeId
from meshinfer.mesh.view_change import ViewChanges, outline
from tests.mesh.virtual_time import run_virtual

A, B = NodeId("a"), NodeId("b")
MEMBER = Member(A, "pc", MemberState.ALIVE, Capacity(8, 4, 2, (), "1"), (), ())
VIEW = FleetView(A, (MEMBER,), Epoch(1, A), A)


def with_member(**changes: object) -> FleetView:
    return replace(VIEW, members=(replace(MEMBER, **changes),))


@pytest.mark.parametrize(
    ("other", "differs"),
    [
        pytest.param(with_member(state=MemberState.SUSPECT), True, id="state"),
        pytest.param(with_member(joined_at_s=5.0), True, id="a new start"),
        pytest.param(with_member(holds_model=True), True, id="it could lead"),
        pytest.param(with_member(capacity=Capacity(8, 3, 2, (), "1")), False, id="free memory"),
        pytest.param(replace(VIEW, members=()), True, id="members"),
        pytest.param(replace(VIEW, leader=None), True, id="leader"),
        pytest.param(replace(VIEW, epoch=Epoch(2, A)), True, id="epoch"),
        pytest.param(replace(VIEW), False, id="nothing"),
    ],
)
def test_what_counts_as_a_change(other: FleetView, differs: bool) -> None:
    assert (outline(other) != outline(VIEW)) is differs


def test_a_slow_watcher_gets_the_newest_only() -> None:
    async def main() -> None:
        newest = VIEW
        changes = ViewChanges(VIEW)
        watching = changes.watch(lambda: newest)
        assert await anext(watching) == VIEW
        for counter in range(2, 10):
            newest = replace(VIEW, epoch=Epoch(counter, A))
            changes.look(newest)
        assert (await anext(watching)).epoch.counter == 9

    run_virtual(main())
