"""The fleet bench's rows about prompts: first tokens, shared prefixes, and a long prompt among
others who decode."""

from __future__ import annotations

import asyncio
import random
import statistics

from tools.benches.bench_fleet import ANSWER_PATIENCE_S, ask_once, chat
from tools.benches.options import BenchOptions
from tools.benches.report import Report
from tools.loads.exchange import Answer, Question, Target, ask
from tools.loads.figures import gaps
from tools.loads.mix import prompt_of
from tools.loads.spread import spread

PROMPT_TOKENS = 512
PREFIX_TOKENS = 1000
LONG_TOKENS = 4000
TEMPLATE_TOKENS = 32
"""About what a chat template and the fixed words of a prompt add."""

OTHERS = 8
OTHERS_TOKENS = 350
"""With the long prompt it fits into the fleet's cache of 8192 tokens, and lasts longer than that
prompt takes to arrive."""

HEAD_START = 24
"""Tokens of each of the others before the long prompt comes: what they are compared with."""


def first_token_prompts(options: BenchOptions) -> list[str]:
    """Distinct from the first word on, so that no cache of prefixes helps; the first is to warm."""
    chance = random.Random(512)
    count = 1 + max(3, options.repeat)
    return [prompt_of(PROMPT_TOKENS - TEMPLATE_TOKENS, chance) for _ in range(count)]


def compare_first_token(report: Report, options: BenchOptions, url: str, baseline_s: float) -> None:
    """Both idle, the same prompts."""
    prompts = first_token_prompts(options)
    answers = [ask_once(url, Question(chat(options.model, one, 2))) for one in prompts]
    found = statistics.median(_first_s(one) for one in answers[1:])
    told = answers[-1].prompt_tokens
    name = f"genai, {told} tokens"
    report.compare("fleet/first_token/prompt=512", found, "s", baseline_s, name)


def compare_prefix(report: Report, options: BenchOptions, url: str) -> None:
    """First token of a second turn over that of the first, whose prompt nobody has seen."""
    chance = random.Random(1000)
    cold, warm = [], []
    for _ in range(max(3, options.repeat)):
        first = {"role": "user", "content": prompt_of(PREFIX_TOKENS, chance)}
        answer = ask_once(url, Question(chat(options.model, [first], 16), keep_text=True))
        second = [
            first,
            {"role": "assistant", "content": answer.text},
            {"role": "user", "content": "Go on, and tell what happens at the end."},
        ]
        cold.append(_first_s(answer))
        warm.append(_first_s(ask_once(url, Question(chat(options.model, second, 4)))))
    report.compare(
        "fleet/prefix_first_token",
        statistics.median(warm),
        "s",
        statistics.median(cold),
        "first turn",
    )


def long_prompt(report: Report, options: BenchOptions, url: str) -> None:
    """p99 between tokens of others while a long prompt arrives, over their median before."""
    answers, long = asyncio.run(_disturbed(Target.parse(url), options.model))
    faults = [one.fault for one in (*answers, long) if one.fault is not None]
    if faults or not long.marks:
        raise SystemExit(f"long_prompt: not all were answered: {faults}.")
    quiet = gaps(answers, max(one.marks[0] for one in answers), long.asked)
    disturbed = spread(gaps(answers, long.asked, long.marks[0]))
    if not quiet or disturbed is None or disturbed.count < OTHERS:
        raise SystemExit("long_prompt: the others ended before the long prompt was answered.")
    print(
        f"{long.prompt_tokens} tokens arrived in {_first_s(long):.1f} s; the others: median "
        f"{statistics.median(quiet) * 1000:.0f} ms before, p99 {disturbed.p99 * 1000:.0f} ms, "
        f"worst {disturbed.most * 1000:.0f} ms"
    )
    ratio = disturbed.p99 / statistics.median(quiet)
    report.absolute("fleet/long_prompt/p99", ratio, "x median")


async def _disturbed(target: Target, model: str) -> tuple[list[Answer], Answer]:
    """The others' answers and the long one's. A first round tells how long the head start takes."""

    def others(tokens: int) -> list[Question]:
        text = "Write all numbers as words, one a line, without end. Begin with"
        return [Question(chat(model, f"{text} {index + 11}.", tokens)) for index in range(OTHERS)]

    head_start = await _all(target, others(HEAD_START))
    wait_s = max(one.ended - one.asked for one in head_start)
    text = prompt_of(LONG_TOKENS, random.Random(4000))
    async with asyncio.TaskGroup() as group:
        decoding = group.create_task(_all(target, others(OTHERS_TOKENS)))
        await asyncio.sleep(wait_s)
        long = await ask(target, Question(chat(model, text, 2)), ANSWER_PATIENCE_S)
    return decoding.result(), long


async def _all(target: Target, questions: list[Question]) -> list[Answer]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(ask(target, one, ANSWER_PATIENCE_S)) for one in questions]
    return [task.result() for task in tasks]


def _first_s(answer: Answer) -> float:
    return answer.marks[0] - answer.asked
