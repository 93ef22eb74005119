"""Whole fleets in one process: election, plan, commit, ring, answers, loss."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest

from meshinfer.core.model import UnitRange
from meshinfer.core.request import Delta, Event, Finished, Started
from meshinfer.core.step import Row, Step
from meshinfer.engine.sampling import DrawRow, draw
from meshinfer.engine.toy import ToyStage
from meshinfer.engine.toy_tokenizer import END_TOKEN, ByteTokenizer
from meshinfer.errors import MeshInferError, NotEnoughMemory
from tests.node.toy_fleet import TOY, ToyFleet, answer, question, toy_fleet

pytestmark = pytest.mark.slow

SMALL = 151_700_000
"""What a PC must lack so that the toy model needs three: its process takes 150 MB of it."""


def expected(text: str, max_tokens: int) -> list[int]:
    """One whole stage, nothing else."""
    stage = ToyStage(UnitRange(0, len(TOY.shape().units)), TOY, 2048)
    tokens = ByteTokenizer().encode_text(text)
    position, drawn = 0, []
    for number in range(max_tokens):
        new = tokens[position:]
        row = Row(1, position, len(new), 1)
        logits = stage.forward(Step(number, (row,), tuple(new)), None)
        position = len(tokens)
        (one,) = draw(logits, [DrawRow(row.sampling, position)])
        tokens.append(one.token)
        drawn.append(one.token)
        if one.token == END_TOKEN:
            break
    return drawn


async def test_one_pc_serves_alone() -> None:
    async with toy_fleet("a") as fleet:
        await fleet.ready()
        assert len(fleet.stages()) == 1
        assert await answer(fleet.nodes["a"], question("alone")) == expected("alone", 12)


@pytest.mark.parametrize("count", [2, 3, 5])
async def test_every_pc_is_a_door_to_the_same_answer(count: int) -> None:
    """P13: any number of PCs works, and the output equals that of one."""
    names = [f"pc{index}" for index in range(count)]
    async with toy_fleet(*names, stages=count) as fleet:
        await fleet.ready()
        assert len(fleet.stages()) == count
        for toy in fleet.nodes.values():
            assert await answer(toy, question("who is there")) == expected("who is there", 12)


async def test_many_users_on_all_doors_at_once() -> None:
    """C16, A13: nothing mixed; each equals its lone run."""
    async with toy_fleet("a", "b", "c", stages=3) as fleet:
        await fleet.ready()
        doors = list(fleet.nodes.values())
        asked = [f"user {index} {'q' * (index % 17)}" for index in range(32)]
        answers = await asyncio.gather(
            *(answer(doors[i % 3], question(text, 8)) for i, text in enumerate(asked))
        )
        assert answers == [expected(text, 8) for text in asked]


async def test_a_model_larger_than_the_fleet_is_told_with_figures() -> None:
    """P03: no load starts; the error has needed and available; a PC more and it works."""
    async with toy_fleet("a", memory=140_000_000) as fleet:
        await fleet.until(lambda: fleet.leader() is not None, "a leader")
        leader = fleet.leader()
        assert leader is not None
        await fleet.until(
            lambda: (leader.node.door.document() or {})["model"]["state"] == "waiting", "no plan"
        )
        with pytest.raises(NotEnoughMemory, match=r"are needed, .* are available"):
            await answer(leader, question("too big"))
        assert leader.node.keeper.held is None
        fleet.start("b")
        await fleet.ready()
        assert await answer(fleet.nodes["a"], question("now")) == expected("now", 12)


@pytest.mark.parametrize("victim", ["worker", "leader"])
async def test_a_dead_pc_ends_requests_soon_and_the_rest_serve_again(victim: str) -> None:
    async with toy_fleet("a", "b", "c", stages=2) as fleet:
        await fleet.ready()
        leader = fleet.leader()
        assert leader is not None
        in_plan = [toy for toy in fleet.nodes.values() if toy.runner.stages]
        lost = leader if victim == "leader" else next(t for t in in_plan if t is not leader)
        name = next(name for name, toy in fleet.nodes.items() if toy is lost)
        asker = next(toy for toy in fleet.nodes.values() if toy is not lost)
        stream = asker.node.door.generate(question("a long story", 900))
        assert isinstance(await anext(stream), Started)
        assert isinstance(await anext(stream), Delta)
        await fleet.kill(name)
        with pytest.raises(MeshInferError):
            await within_ten_seconds(stream)
        await fleet.ready()
        for toy in fleet.nodes.values():
            assert await answer(toy, question("again")) == expected("again", 12)


async def test_a_client_that_leaves_frees_every_stage() -> None:
    """A09: on all PCs, also when it asked at a follower."""
    async with toy_fleet("a", "b", stages=2) as fleet:
        await fleet.ready()
        follower = next(toy for toy in fleet.nodes.values() if toy.node.door.term is None)
        stream = follower.node.door.generate(question("leave me", 900))
        async for event in stream:
            if isinstance(event, Delta):
                break
        await stream.aclose()
        leader = fleet.leader()
        assert leader is not None
        term = leader.node.door.term
        assert term is not None
        serving = term.serving
        assert serving is not None
        await fleet.until(lambda: serving.document()["running"] == 0, "the request is gone")
        assert await answer(follower, question("next")) == expected("next", 12)


async def test_a_pc_that_comes_later_is_a_door_and_changes_nothing() -> None:
    async with toy_fleet("a", "b", stages=2) as fleet:
        await fleet.ready()
        before = fleet.stages()
        late = fleet.start("c")
        await fleet.ready()
        assert fleet.stages() == before
        assert await answer(late, question("late")) == expected("late", 12)


async def test_a_leader_that_restarts_quickly_is_one_member_with_one_leader() -> None:
    """J08, J12."""
    async with toy_fleet("a", "b", "c", stages=2) as fleet:
        await fleet.ready()
        for _ in range(3):
            leader = fleet.leader()
            assert leader is not None
            name = next(name for name, toy in fleet.nodes.items() if toy is leader)
            await fleet.kill(name)
            fleet.start(name, stages=2)
            await fleet.ready()
        living = {toy.id for toy in fleet.nodes.values()}
        await fleet.until(lambda: all(seen(fleet, toy) == living for toy in fleet.nodes), "three")


async def within_ten_seconds(stream: AsyncGenerator[Event, None]) -> None:
    async with asyncio.timeout(10):
        async for _ in stream:
            pass


def seen(fleet: ToyFleet, name: str) -> set[str]:
    members = fleet.nodes[name].mesh.view.members
    return {member.node for member in members if member.state.value != "dead"}


async def test_every_choice_comes_through_every_door() -> None:
    async with toy_fleet("a", "b", stages=2) as fleet:
        await fleet.ready()
        for toy in fleet.nodes.values():
            asked = replace(question("three at once"), choices=3)
            ends = [
                event.choice
                async for event in toy.node.door.generate(asked)
                if isinstance(event, Finished)
            ]
            assert sorted(ends) == [0, 1, 2]
