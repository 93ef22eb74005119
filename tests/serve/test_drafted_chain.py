"""Prompts through the whole path with a draft model beside it: the same answers in fewer steps."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from meshinfer.core.request import Delta, Finished, FinishReason, Grammar, GrammarKind, Sampling
from tests.serve.chain import TOY, alone, collect, request, running_chain

OTHER = replace(TOY, seed=8)
"""A draft that is hardly ever right."""


@pytest.mark.parametrize("trees", [False, True])
@pytest.mark.parametrize("draft", [TOY, OTHER])
async def test_answers_equal_their_lone_runs(draft: object, trees: bool) -> None:
    prompts = [f"user {index} says {'x' * (index * 7 % 60)}" for index in range(6)]
    async with running_chain([4, 7], draft=draft, trees=trees) as chain:
        first, _, _ = await collect(chain, request("How far is the moon?", 60))
        answers = await asyncio.gather(
            *(collect(chain, request(p, 20 + i)) for i, p in enumerate(prompts))
        )
        figures = chain.speculation.figures
    assert first == alone("How far is the moon?", 60)
    for index, (prompt, (tokens, _, finished)) in enumerate(zip(prompts, answers, strict=True)):
        assert tokens == alone(prompt, 20 + index)
        assert finished.completion_tokens == len(tokens)
    assert figures.draft_steps > 0
    if draft is TOY:
        assert figures.accepted > 0


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0.8, top_p=0.9, seed=5),
        Sampling(temperature=1.3, top_k=40, min_p=0.01, seed=6),
        Sampling(temperature=0.0, repetition_penalty=1.3, presence_penalty=0.5),
        Sampling(temperature=0.9, frequency_penalty=0.7, seed=9, logprobs=2),
        Sampling(temperature=0.0, bias=((65, 3.0), (66, -100.0))),
    ],
)
@pytest.mark.parametrize("trees", [False, True])
async def test_sampling_and_penalties_are_those_of_a_plain_run(
    sampling: Sampling, trees: bool
) -> None:
    asked = [request(f"dice {index}", 30, sampling) for index in range(3)]

    async def told(draft: bool) -> list[tuple[list[int], list[object]]]:
        found = []
        async with running_chain([5], draft=TOY if draft else None, trees=trees) as chain:
            for one in asked:
                tokens: list[int] = []
                logprobs: list[object] = []
                async for event in chain.inbox.generate(one):
                    if isinstance(event, Delta):
                        tokens += event.tokens
                        logprobs += event.logprobs
                found.append((tokens, logprobs))
        return found

    assert await told(draft=True) == await told(draft=False)


@pytest.mark.parametrize("drafts", [1, 3, 8])
async def test_a_stop_string_a_grammar_and_choices(drafts: int) -> None:
    schema = '{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}'
    grammar = Grammar(GrammarKind.JSON_SCHEMA, schema)
    ruled = replace(request("number?", 60, Sampling(seed=4)), grammar=grammar)
    hot = replace(request("p" * 100, 12, Sampling(temperature=1.5, seed=11)), choices=3)
    async with running_chain([5], draft=TOY) as chain:
        _, text, finished = await collect(chain, replace(ruled, speculative_tokens=drafts))
        told: dict[int, list[int]] = {0: [], 1: [], 2: []}
        async for event in chain.inbox.generate(replace(hot, speculative_tokens=drafts)):
            if isinstance(event, Delta):
                told[event.choice] += event.tokens
        whole = (await collect(chain, request("stop me", 40)))[1]
        places = [index for index in range(3, len(whole) - 4) if whole[index : index + 3].strip()]
        stop = whole[places[0] : places[0] + 3]
        stopped = replace(request("stop me", 40), stop=(stop,), speculative_tokens=drafts)
        cut_tokens, cut, cut_end = await collect(chain, stopped)
    async with running_chain([5]) as plain:
        assert (text, finished.completion_tokens) == await _end_of(plain, ruled)
        assert (cut, cut_end.completion_tokens) == await _end_of(plain, stopped)
    assert finished.reason is not FinishReason.STOP or isinstance(json.loads(text)["n"], int)
    assert len(cut_tokens) == cut_end.completion_tokens
    for choice, tokens in told.items():
        assert tokens == alone("p" * 100, 12, Sampling(temperature=1.5, seed=11 + choice))


async def _end_of(chain: object, asked: object) -> tuple[str, int]:
    _, text, finished = await collect(chain, asked)
    assert isinstance(finished, Finished)
    return text, finished.completion_tokens


async def test_a_draft_that_is_lost_costs_no_answer() -> None:
    async with running_chain([4], draft=TOY) as chain:
        answer = asyncio.create_task(collect(chain, request("lost draft", 80)))
        async for event in chain.inbox.generate(request("clock", 20)):
            if isinstance(event, Finished):
                await chain.links[-1].close()
        tokens, _, _ = await answer
        assert tokens == alone("lost draft", 80)
        again, _, _ = await collect(chain, request("and on", 20))
        assert again == alone("and on", 20)


@pytest.mark.parametrize("where", [0, 1])
async def test_a_stage_that_lost_its_cache_costs_no_token(where: int) -> None:
    async with running_chain([4], draft=TOY, trees=True) as chain:
        prompts = [f"forgetful {index} " + "w" * 30 * index for index in range(3)]
        answers = [asyncio.create_task(collect(chain, request(p, 50))) for p in prompts]
        async for event in chain.inbox.generate(request("clock", 50)):
            if isinstance(event, Delta) and event.tokens and event.tokens[0] % 4 == 0:
                chain.stages[where].keep({})
        for prompt, (tokens, _, _) in zip(prompts, await asyncio.gather(*answers), strict=True):
            assert tokens == alone(prompt, 50)
