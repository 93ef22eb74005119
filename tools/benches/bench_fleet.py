"""One-core PCs as processes: a fleet for the benches, and questions from many users at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.agent_process import AgentProcess
from tools.free_ports import free_ports
from tools.labs.fleet import agents_of, ended, found, wait_ready
from tools.loads.exchange import Answer, Question, Target, ask
from tools.loads.figures import first_tokens, together_per_s

ANSWER_PATIENCE_S = 300.0
PROMPT = "Write a long story about a lighthouse keeper and the sea."


@dataclass(frozen=True, slots=True)
class Load:
    """What so many users at once got."""

    tokens_per_s: float  # all users together, while all of them decode
    first_token_s: float  # mean


@contextmanager
def fleet_of(
    folder: Path, model: Path, pcs: int, *words: str, others: Sequence[Path] = ()
) -> Iterator[list[AgentProcess]]:
    """Agents that serve `model` in as many stages, each pinned to a core; where this machine has
    fewer cores, several share one. The first PC also has the models `others`."""
    agents = agents_of(folder, free_ports(2 * pcs))
    found(agents, model, *others)
    with ended(agents):
        agents[0].start("--model", model.name, "--no-mdns", "--stages", str(pcs), *words)
        peer = ("--peer", f"127.0.0.1:{agents[0].listen}", "--no-mdns")
        for agent in agents[1:]:
            agent.start(*peer, "--stages", str(pcs), *words)
        wait_ready(agents)
        yield agents


def prompts_of(users: int) -> list[str]:
    """One a user, short, all different, with long answers."""
    return [f"{PROMPT} Number {index}." for index in range(users)]


def chat(model: str, messages: Sequence[dict[str, str]] | str, tokens: int) -> dict[str, Any]:
    """The body of a greedy, streamed question."""
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    return {
        "model": model,
        "messages": list(messages),
        "temperature": 0,
        "max_tokens": tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def load(url: str, model: str, users: int, tokens: int) -> Load:
    """`users` streams of `tokens` tokens each, started together. Ends the bench when one fails."""
    questions = [Question(chat(model, prompt, tokens)) for prompt in prompts_of(users)]
    answers = asyncio.run(ask_together(Target.parse(url), questions))
    try:
        speed = together_per_s(answers)
    except ValueError as error:
        raise SystemExit(f"{users} users at {url}: {error}.") from error
    firsts = first_tokens(answers)
    return Load(speed, sum(firsts) / len(firsts))


async def ask_together(target: Target, questions: Sequence[Question]) -> list[Answer]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(ask(target, one, ANSWER_PATIENCE_S)) for one in questions]
    return [task.result() for task in tasks]


def ask_once(url: str, question: Question) -> Answer:
    """One answer. Ends the bench when there is none."""
    answer = asyncio.run(ask(Target.parse(url), question, ANSWER_PATIENCE_S))
    if answer.fault is not None or not answer.marks:
        raise SystemExit(f"{url} gave no answer: {answer.fault or 'no text'}.")
    return answer
