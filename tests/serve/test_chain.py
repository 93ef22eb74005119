"""Prompts through inbox, scheduler, ring and toy stages: whole answers, nobody else's text."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest

from meshinfer.core.request import (
    Delta,
    Event,
    Finished,
    FinishReason,
    Grammar,
    GrammarKind,
    Sampling,
    Started,
)
from meshinfer.errors import ContextTooLong, InvalidRequest, PeerLost, TimedOut
from tests.serve.chain import CONTEXT, alone, collect, request, running_chain


@pytest.mark.parametrize("cuts", [[], [5], [1, 9], [3, 4, 8]])
async def test_a_ring_of_stages_equals_one_stage(cuts: list[int]) -> None:
    async with running_chain(cuts) as chain:
        tokens, _, finished = await collect(chain, request("How far is the moon?", 30))
    assert tokens == alone("How far is the moon?", 30)
    assert finished.completion_tokens == len(tokens)
    assert finished.prompt_tokens == 20


async def test_thirty_two_at_once_each_equal_their_lone_run() -> None:
    """C16: no answer ever holds another user's text."""
    prompts = [f"user {index} says {'x' * (index * 7 % 120)}" for index in range(32)]
    async with running_chain([4, 7]) as chain:
        answers = await asyncio.gather(
            *(collect(chain, request(p, 5 + i % 11)) for i, p in enumerate(prompts))
        )
        assert chain.scheduler.running == chain.scheduler.waiting == 0
    for index, (prompt, (tokens, _, _)) in enumerate(zip(prompts, answers, strict=True)):
        assert tokens == alone(prompt, 5 + index % 11)


async def test_a_short_cache_makes_requests_wait_and_changes_nothing() -> None:
    prompts = [f"{index} " + "y" * 60 for index in range(8)]
    async with running_chain([5], cache_tokens=CONTEXT) as chain:
        answers = await asyncio.gather(*(collect(chain, request(p, 40)) for p in prompts))
    assert [tokens for tokens, _, _ in answers] == [alone(prompt, 40) for prompt in prompts]


async def test_sampling_depends_on_the_seed_and_the_position_only() -> None:
    hot = Sampling(temperature=1.2, top_p=0.9, top_k=50, seed=7)
    async with running_chain([5]) as chain:
        first, _, _ = await collect(chain, request("dice", 25, hot))
        crowd = [collect(chain, request(f"noise {i}", 20)) for i in range(4)]
        second, *_ = await asyncio.gather(collect(chain, request("dice", 25, hot)), *crowd)
        other = Sampling(temperature=1.2, top_p=0.9, top_k=50, seed=8)
        third, _, _ = await collect(chain, request("dice", 25, other))
    assert first == second[0] == alone("dice", 25, hot)
    assert third != first


async def test_a_prompt_at_the_limit_of_the_context() -> None:
    """C14: both numbers in the error, nothing computed; below it, generate up to the context."""
    async with running_chain([5]) as chain:
        for length in (CONTEXT, CONTEXT + 1, 2 * CONTEXT):
            with pytest.raises(ContextTooLong, match=rf"{length} tokens.*{CONTEXT}"):
                await collect(chain, request("z" * length))
        assert chain.statistics.speed().steps == 0
        tokens, _, finished = await collect(chain, request("z" * (CONTEXT - 1), 50))
        assert len(tokens) == 1
        assert finished.reason in (FinishReason.LENGTH, FinishReason.STOP)
        assert finished.prompt_tokens == CONTEXT - 1
        with pytest.raises(InvalidRequest, match="empty"):
            await collect(chain, request(""))


async def test_a_stop_token_is_counted_and_never_shown() -> None:
    async with running_chain([5]) as chain:
        for index in range(40):
            tokens, text, finished = await collect(chain, request(f"find a stop {index}", 200))
            if finished.reason is FinishReason.STOP:
                assert tokens[-1] == 0
                assert "\x00" not in text
                assert finished.completion_tokens == len(tokens)
                return
    pytest.fail("no prompt led to the stop token: the toy model has changed, choose others")


async def test_a_client_that_leaves_frees_its_place() -> None:
    async with running_chain([5]) as chain:
        async with contextlib.aclosing(chain.inbox.generate(request("leave", 400))) as events:
            async for event in events:
                if isinstance(event, Delta):
                    break
        assert chain.scheduler.running == chain.scheduler.waiting == 0
        tokens, _, _ = await collect(chain, request("stay", 10))
        assert tokens == alone("stay", 10)
        # the left one's cache is gone on every stage: only what is in flight may remain
        assert [stage.cached(1) for stage in chain.stages] == [0, 0]


async def drained(stream: AsyncGenerator[Event, None]) -> None:
    async with asyncio.timeout(10):
        async for _ in stream:
            pass


async def test_a_broken_link_ends_every_answer_with_an_error() -> None:
    async with running_chain([4, 7]) as chain:
        streams = [chain.inbox.generate(request(f"lost {i}", 400)) for i in range(3)]
        for stream in streams:
            assert isinstance(await anext(stream), Started)
        await chain.links[1].close()
        for stream in streams:
            with pytest.raises(PeerLost):
                await drained(stream)
        with pytest.raises(PeerLost):
            await collect(chain, request("late"))


async def test_a_stage_that_hangs_ends_every_answer_in_the_end() -> None:
    """Its links stay open; nobody else would notice."""
    async with running_chain([4], patience_s=0.2) as chain:
        stream = chain.inbox.generate(request("hang", 400))
        assert isinstance(await anext(stream), Started)
        chain.links[1].incoming.cut = True
        with pytest.raises(TimedOut, match="may hang"):
            await drained(stream)


async def test_a_damaged_frame_ends_the_plan_and_yields_no_text() -> None:
    """C01: a zeroed or swapped frame never becomes an answer."""
    async with running_chain([4]) as chain:
        stream = chain.inbox.generate(request("damage", 400))
        assert isinstance(await anext(stream), Started)
        chain.links[1].incoming.damage = 1
        with pytest.raises(PeerLost):
            await drained(stream)


async def test_where_the_time_went_is_known_for_every_stage() -> None:
    async with running_chain([4, 7]) as chain:
        await collect(chain, request("time", 20))
        speed = chain.statistics.speed()
    assert speed.tokens >= 1
    assert len(speed.stages) == 3
    assert all(stage.compute_ms > 0 for stage in speed.stages)


async def test_choices_share_their_prompt_and_draw_by_themselves() -> None:
    hot = Sampling(temperature=1.5, seed=11)
    asked = replace(request("p" * 100, 8, hot), choices=3)
    async with running_chain([5]) as chain:
        told: dict[int, list[int]] = {0: [], 1: [], 2: []}
        ends = []
        async for event in chain.inbox.generate(asked):
            if isinstance(event, Delta):
                told[event.choice] += event.tokens
            elif isinstance(event, Finished):
                ends.append(event)
        for choice, tokens in told.items():
            assert tokens == alone("p" * 100, 8, replace(hot, seed=11 + choice))
        assert sorted(one.choice for one in ends) == [0, 1, 2]
        assert sorted(one.cached_tokens for one in ends) == [0, 99, 99]


async def test_a_second_turn_is_warm_and_says_so() -> None:
    """M11."""
    async with running_chain([4, 7]) as chain:
        first = "q" * 90
        tokens, _, _ = await collect(chain, request(first, 10))
        second = first + bytes(tokens).decode("latin-1")
        asked = second if second.isascii() else first + "!"
        again, _, finished = await collect(chain, request(asked, 10))
        assert again == alone(asked, 10)
        assert finished.cached_tokens >= 90


async def test_a_stop_string_ends_the_answer_and_frees_it_within_a_step() -> None:
    async with running_chain([5]) as chain:
        _, text, _ = await collect(chain, request("stop me", 40))
        printable = [index for index in range(3, len(text) - 4) if text[index : index + 3].strip()]
        stop = text[printable[0] : printable[0] + 3]
        asked = replace(request("stop me", 40), stop=(stop,))
        _, cut, finished = await collect(chain, asked)
        assert cut == text[: text.index(stop)]
        assert finished.reason is FinishReason.STOP
        assert finished.completion_tokens < 40
        assert chain.scheduler.running == 0


async def test_an_answer_follows_its_grammar() -> None:
    schema = '{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}'
    grammar = Grammar(GrammarKind.JSON_SCHEMA, schema)
    async with running_chain([5]) as chain:
        asked = replace(request("number?", 60, Sampling(seed=4)), grammar=grammar)
        _, text, finished = await collect(chain, asked)
        if finished.reason is FinishReason.STOP:
            assert isinstance(json.loads(text)["n"], int)
        assert text.startswith("{")
        with pytest.raises(InvalidRequest, match="schema"):
            await collect(chain, replace(asked, grammar=replace(grammar, text="{{")))


async def test_penalties_and_biases_are_those_of_the_request_alone() -> None:
    biased = Sampling(temperature=0.0, bias=((65, 100.0),))
    async with running_chain([5]) as chain:
        crowd = [collect(chain, request(f"crowd {index}", 20)) for index in range(3)]
        asked = request("biased", 6, biased)
        plain = request("plain", 20, Sampling(temperature=0.0, presence_penalty=2.0))
        (tokens, _, _), (spread, _, _), *others = await asyncio.gather(
            collect(chain, asked), collect(chain, plain), *crowd
        )
        assert tokens == [65] * 6
        assert spread == (await collect(chain, plain))[0]
        for index, (own, _, _) in enumerate(others):
            assert own == alone(f"crowd {index}", 20)


async def test_log_probabilities_come_with_the_tokens_that_asked() -> None:
    async with running_chain([5]) as chain:
        asked = request("probable", 5, Sampling(temperature=0.0, logprobs=3))
        told = []
        async for event in chain.inbox.generate(asked):
            if isinstance(event, Delta):
                told += event.logprobs
        assert len(told) == 5
        for one in told:
            assert one.alternatives[0] == (one.token, one.logprob)
            values = [value for _, value in one.alternatives]
            assert values == sorted(values, reverse=True)


@pytest.mark.parametrize("where", [0, 1, 2])
async def test_a_stage_that_lost_its_cache_costs_time_and_no_token(where: int) -> None:
    """Leases run out at one stage, in the middle of answers: it says so, the leader recomputes."""
    async with running_chain([4, 7]) as chain:
        prompts = [f"forgetful {index} " + "w" * 30 * index for index in range(4)]
        answers = [asyncio.create_task(collect(chain, request(p, 60))) for p in prompts]
        async for event in chain.inbox.generate(request("clock", 60)):
            if isinstance(event, Delta) and len(event.tokens) and event.tokens[0] % 4 == 0:
                chain.stages[where].keep({})
        for prompt, (tokens, _, _) in zip(prompts, await asyncio.gather(*answers), strict=True):
            assert tokens == alone(prompt, 60)


async def test_a_new_leader_finds_the_conversations_of_the_old_one() -> None:
    """As far as all stages still hold them."""
    async with running_chain([4, 7]) as old:
        first, _, _ = await collect(old, request("r" * 120, 10))
        await collect(old, request("s" * 120, 10))
        memories = old.memories
    held = memories[1].census(None)
    lost = next(one for one in held if one.tokens[0] == ord("s"))
    memories[1].keep({one.sequence: len(one.tokens) for one in held if one is not lost})
    async with running_chain([4, 7], memories=memories) as new:
        again, _, finished = await collect(new, request("r" * 120, 10))
        assert again == first
        assert finished.cached_tokens == 119
        _, _, finished = await collect(new, request("s" * 120, 10))
        assert finished.cached_tokens == 0
