"""Hours of many users: faults, growth of memory, and words that reach somebody else."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

import psutil

from tools.agent_process import AgentProcess
from tools.benches.bench_fleet import chat
from tools.benches.options import BenchOptions
from tools.benches.report import Report
from tools.loads.arrivals import ThinkTime
from tools.loads.exchange import Question, Target
from tools.loads.figures import figures_of
from tools.loads.mix import Kind, pick, prompt_of
from tools.loads.users import Asked, Crowd, Extent
from tools.loads.words import foreign_words, new_word, question

USERS = 32
KINDS = (Kind(4, 30, 40), Kind(2, 150, 60), Kind(1, 400, 20))
WORD_SHARE = 0.5
LEAVE_SHARE = 0.05
THINK = ThinkTime(1.0)
WARM_UP = 0.2
"""Of the time; what memory grows to until then is caches and buffers that fill."""

SAMPLES = 50


@dataclass(slots=True)
class Talk:
    """Makes the questions: half of them to repeat a word, some users leave."""

    model: str
    chance: random.Random = field(default_factory=lambda: random.Random(7))
    known: set[str] = field(default_factory=set)

    def next(self) -> Question:
        kind = pick(KINDS, self.chance)
        text = (
            question(new_word(self.chance, self.known))
            if self.chance.random() < WORD_SHARE
            else prompt_of(kind.prompt, self.chance)
        )
        leaves = self.chance.random() < LEAVE_SHARE
        after = self.chance.randint(1, kind.answer) if leaves else None
        body = chat(self.model, text, kind.answer)
        return Question(body, keep_text=True, leave_after=after)

    def foreign(self, asked: Asked) -> bool:
        """Whether an answer holds a word that its question does not."""
        text = str(asked.question.body["messages"][0]["content"])
        own = next((word for word in text.split('"')[1:2]), "")
        return bool(foreign_words(asked.answer.text, own, self.known))


def soak(report: Report, options: BenchOptions, agents: list[AgentProcess]) -> None:
    """Rows `fleet/soak/...`; all three should be 0, the memory nearly."""
    talk = Talk(options.model)
    duration_s = options.soak_minutes * 60
    crowd = Crowd(Target.parse(agents[0].url), talk.next, Extent(duration_s, None), seed=7)
    seconds, memory = asyncio.run(_run(crowd, agents, duration_s))
    figures = figures_of(crowd.asked, seconds)
    print(
        f"{figures.answered} of {figures.requests} answered, {figures.tokens_per_s:.1f} tokens/s, "
        f"{figures.busy} times busy, faults {figures.faults}"
    )
    warm = memory[int(len(memory) * WARM_UP) : -1] or memory[:1]
    report.absolute("fleet/soak/errors", sum(figures.faults.values()), "answers")
    report.absolute("fleet/soak/memory_growth", (memory[-1] - warm[0]) / 1e6, "MB")
    foreign = sum(talk.foreign(one) for one in crowd.asked)
    report.absolute("fleet/soak/foreign_words", foreign, "answers")


async def _run(
    crowd: Crowd, agents: list[AgentProcess], duration_s: float
) -> tuple[float, list[int]]:
    """Seconds it took, and the memory of all processes at even moments and at the end."""
    samples: list[int] = []
    async with asyncio.TaskGroup() as group:
        users = group.create_task(crowd.closed(USERS, THINK))
        while not users.done():
            samples.append(memory_of(agents))
            await asyncio.wait([users], timeout=duration_s / SAMPLES)
    return users.result(), [*samples, memory_of(agents)]


def memory_of(agents: list[AgentProcess]) -> int:
    """Resident bytes of the agents and of their stage hosts."""
    total = 0
    for agent in agents:
        if agent.process is None:
            continue
        process = psutil.Process(agent.process.pid)
        for one in (process, *process.children(recursive=True)):
            try:
                total += one.memory_info().rss
            except psutil.NoSuchProcess:
                continue  # a child that has done its work
    return total
