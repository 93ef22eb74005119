"""A draft model in a fleet: it joins a plan that serves, and answers never depend on it."""

from __future__ import annotations

from typing import Any

import pytest

from meshinfer.errors import StageFailed
from tests.node.test_toy_fleet import expected
from tests.node.toy_fleet import ToyFleet, answer, question, toy_fleet

pytestmark = pytest.mark.slow


def draft_of(fleet: ToyFleet) -> dict[str, Any]:
    leader = fleet.leader()
    if leader is None:
        return {}
    plan = (leader.node.door.document() or {}).get("plan") or {}
    found: dict[str, Any] = plan.get("draft") or {}
    return found


def guesses_of(fleet: ToyFleet) -> dict[str, Any]:
    leader = fleet.leader()
    assert leader is not None
    assert leader.node.door.term is not None
    found: dict[str, Any] = leader.node.door.term.document()["serving"]["speculation"]
    return found


async def test_a_draft_guesses_and_changes_nothing() -> None:
    async with toy_fleet("a", "b") as plain:
        await plain.ready()
        asked = question("Where is the sea?", 60)
        assert await answer(plain.nodes["a"], asked) == expected("Where is the sea?", 60)
        assert draft_of(plain) == {"state": "none", "why": ""}
    async with toy_fleet() as fleet:
        fleet.has_draft = True
        for name in ("a", "b"):
            fleet.start(name)
        await fleet.ready()
        await fleet.until(lambda: draft_of(fleet).get("state") == "serving", "drafting")
        for toy in fleet.nodes.values():
            assert await answer(toy, asked) == expected("Where is the sea?", 60)
        assert guesses_of(fleet)["draft_steps"] > 0
        assert draft_of(fleet)["model"] == "toy-draft"


async def test_a_draft_beside_a_stage_of_two() -> None:
    async with toy_fleet() as fleet:
        fleet.has_draft = True
        for name in ("a", "b"):
            fleet.start(name, stages=2)
        await fleet.ready()
        assert len(fleet.stages()) == 2
        await fleet.until(lambda: draft_of(fleet).get("state") == "serving", "drafting")
        assert await answer(fleet.nodes["b"], question("two", 30)) == expected("two", 30)


@pytest.mark.parametrize("late", [False, True], ids=["before it is ready", "before it dials"])
async def test_a_draft_that_fails_is_tried_again_and_costs_no_answer(late: bool) -> None:
    async with toy_fleet() as fleet:
        fleet.has_draft = True
        toy = fleet.start("a")
        toy.runner.drafts_fail_late = late
        toy.runner.draft_faults = [StageFailed("It does not compile.")]
        await fleet.ready()
        await fleet.until(lambda: draft_of(fleet).get("state") == "failed", "failed")
        assert "does not compile" in draft_of(fleet)["why"]
        assert await answer(toy, question("on", 20)) == expected("on", 20)
        await fleet.until(lambda: draft_of(fleet).get("state") == "serving", "drafting", 20)


async def test_the_pc_with_the_draft_may_go() -> None:
    async with toy_fleet() as fleet:
        fleet.has_draft = True
        for name in ("a", "b"):
            fleet.start(name)
        await fleet.ready()
        await fleet.until(lambda: draft_of(fleet).get("state") == "serving", "drafting")
        leader = fleet.leader()
        assert leader is not None
        assert leader.node.door.term is not None
        plan = leader.node.door.term.board.plan
        assert plan is not None
        assert plan.draft is not None
        name = next(n for n, toy in fleet.nodes.items() if toy.id == plan.draft.stage.node)
        with_stage = {stage.node for stage in plan.pipelines[0].stages}
        assert plan.draft.stage.node not in with_stage
        if leader.id != plan.draft.stage.node:
            await fleet.kill(name)
            assert await answer(leader, question("alone", 20)) == expected("alone", 20)
            assert leader.node.door.term.board.plan is plan


async def test_a_link_that_breaks_is_made_anew() -> None:
    """What the old try said last is not taken for an answer of the new one."""
    async with toy_fleet() as fleet:
        fleet.has_draft = True
        toy = fleet.start("a")
        await fleet.ready()
        await fleet.until(lambda: draft_of(fleet).get("state") == "serving", "drafting")
        await toy.runner.draft_links[-1].close("a cable was pulled")
        await fleet.until(lambda: draft_of(fleet).get("state") == "failed", "failed")
        assert await answer(toy, question("on", 20)) == expected("on", 20)
        await fleet.until(lambda: draft_of(fleet).get("state") == "serving", "drafting", 8)
        assert len(toy.runner.draft_links) == 2
