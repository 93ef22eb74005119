"""A whole serving path in one process: inbox, scheduler, ring, toy stages over in-memory links."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace

from meshinfer.core.ids import Epoch, ModelId, NodeId, PlanId, RequestId
from meshinfer.core.model import UnitRange
from meshinfer.core.request import (
    GREEDY,
    ChatMessage,
    Delta,
    Finished,
    GenerationRequest,
    Grammar,
    Sampling,
)
from meshinfer.core.step import Row, Step
from meshinfer.engine.grammar import Constraint, GrammarCompiler
from meshinfer.engine.sampling import DrawRow, draw
from meshinfer.engine.thread import EngineThread
from meshinfer.engine.toy import ToyModel, ToyStage
from meshinfer.link.memory import MemoryLink, memory_pair
from meshinfer.serve.decode_loop import DecodeLoop
from meshinfer.serve.draft_channel import DraftChannel
from meshinfer.serve.draft_link import DraftFacts, DraftLink
from meshinfer.serve.draft_worker import DraftModel, DraftWorker
from meshinfer.serve.inbox import Inbox, Language
from meshinfer.serve.ring import LeaderRing, RingFacts
from meshinfer.serve.scheduler import Scheduler, SchedulerLimits
from meshinfer.serve.speculation import Speculation, SpeculationOptions
from meshinfer.serve.stage_memory import StageMemory
from meshinfer.serve.stage_worker import StageWorker
from meshinfer.serve.statistics import RingStatistics
from meshinfer.serve.step_choice import StepLimits
from meshinfer.serve.step_cost import StepCost

TOY = ToyModel(layers=4, hidden_size=8, vocabulary_size=256, seed=3, front=3)
"""Every edge has a width of its own."""
CONTEXT = 512


class ByteEncoder:
    """Ids are the UTF-8 bytes."""

    async def constrain(self, grammar: Grammar) -> Constraint:
        compiler = GrammarCompiler(
            {one: bytes([one]) for one in range(256)}, 256, {0}, {0}, lambda text: [*text.encode()]
        )
        return compiler.compile(grammar)

    async def encode_chat(self, messages: tuple[ChatMessage, ...]) -> list[int]:
        return await self.encode_text("".join(message.content for message in messages))

    async def encode_text(self, prompt: str) -> list[int]:
        return list(prompt.encode())


class Chain:
    """The parts of a running chain that tests look at."""

    def __init__(
        self, inbox: Inbox, scheduler: Scheduler, stages: list[ToyStage], links: list[MemoryLink]
    ) -> None:
        self.inbox = inbox
        self.scheduler = scheduler
        self.stages = stages
        self.links = links  # the consumer's end of each edge
        self.memories: list[StageMemory]
        self.statistics: RingStatistics
        self.loop: asyncio.Task[None]
        self.speculation: Speculation  # with a draft
        self.sent: Callable[[], None] = lambda: None  # steps went out


@asynccontextmanager
async def running_chain(
    cuts: list[int],
    cache_tokens: int = 4096,
    patience_s: float = 60.0,
    memories: list[StageMemory] | None = None,
    draft: ToyModel | None = None,
    trees: bool = False,
) -> AsyncIterator[Chain]:
    """Stages between `cuts` (unit indices), all joined and looping; `memories` are stages that
    an older plan left behind. With a `draft`, tokens are guessed ahead."""
    bounds = [0, *cuts, len(TOY.shape().units)]
    ranges = [UnitRange(a, b) for a, b in zip(bounds, bounds[1:], strict=False)]
    facts = RingFacts(
        Epoch(1, NodeId("leader")), PlanId("p"), 0, len(ranges), "f32", 0, 256, CONTEXT
    )
    own_facts = [replace(facts, input_width=TOY.width(units.first)) for units in ranges]
    stages = [ToyStage(units, TOY, cache_tokens) for units in ranges]
    engines = [EngineThread() for _ in ranges]
    edges = [memory_pair("ring") for _ in range(len(ranges) + 1)]
    cost = StepCost(len(ranges))
    speculation = None
    if draft is not None:
        cost, speculation = _eager(len(ranges), trees)
    limits = SchedulerLimits(cache_tokens, 16, StepLimits(step_tokens=64))
    scheduler = Scheduler(limits, cost, speculation)
    statistics = RingStatistics(len(ranges), time.monotonic)
    ring = LeaderRing(edges[0][0], edges[-1][1], facts, time.monotonic)
    observers = (statistics.record,) if draft else (cost.take, statistics.record)
    loop = DecodeLoop(scheduler, ring, observers, patience_s, lambda: chain.sent())
    language = Language({i: bytes([i]) for i in range(256)}, {0}, {0}, CONTEXT)
    inbox = Inbox(ByteEncoder(), language, scheduler, loop.wake, time.monotonic)
    chain = Chain(inbox, scheduler, stages, [edge[1] for edge in edges])
    chain.statistics = statistics
    chain.memories = memories or [StageMemory(one, CONTEXT, time.monotonic) for one in stages]
    workers = _workers(chain, engines, own_facts, edges)
    chain.loop = asyncio.create_task(loop.run(inbox))
    if draft is not None and speculation is not None:
        chain.speculation = speculation
        edges.append(memory_pair("ring"))
        engines.append(EngineThread())
        channel, worker = _drafting(chain, loop, draft, edges[-1], engines[-1])
        chain.sent = channel.notice
        workers += [asyncio.create_task(channel.run()), asyncio.create_task(worker)]
    try:
        yield chain
    finally:
        await _ended([chain.loop, *workers], edges, engines)


async def _ended(
    tasks: list[asyncio.Task[None]],
    edges: list[tuple[MemoryLink, MemoryLink]],
    engines: list[EngineThread],
) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for edge in edges:
        await edge[0].close()
        await edge[1].close()
    for engine in engines:
        await engine.close()


def _workers(
    chain: Chain,
    engines: list[EngineThread],
    facts: list[RingFacts],
    edges: list[tuple[MemoryLink, MemoryLink]],
) -> list[asyncio.Task[None]]:
    return [
        asyncio.create_task(
            StageWorker(memory, engine, own, index, time.monotonic).run(
                edges[index][1], edges[index + 1][0]
            )
        )
        for index, (memory, engine, own) in enumerate(
            zip(chain.memories, engines, facts, strict=True)
        )
    ]


def _eager(stages: int, trees: bool) -> tuple[StepCost, Speculation]:
    """As if each step took 20 ms: drafts pay, and so does waiting for them."""
    cost = StepCost(stages, [[(1, 0.02), (256, 0.03)]] * stages)
    return cost, Speculation(cost, SpeculationOptions(trees), time.monotonic)


def _drafting(
    chain: Chain,
    loop: DecodeLoop,
    draft: ToyModel,
    link: tuple[MemoryLink, MemoryLink],
    engine: EngineThread,
) -> tuple[DraftChannel, Coroutine[None, None, None]]:
    """Both ends of the conversation with a draft model."""
    ours, theirs = link
    chain.links.append(theirs)
    epoch, plan = Epoch(1, NodeId("leader")), PlanId("p")
    peer = DraftLink(ours, DraftFacts(epoch, plan, 256))
    channel = DraftChannel(chain.scheduler, chain.speculation, peer, loop.wake)
    stage = ToyStage(UnitRange(0, len(draft.shape().units)), draft, 4096)
    model = DraftModel(epoch, plan, 256, CONTEXT, frozenset({0}))
    return channel, DraftWorker(stage, engine, model, time.monotonic).run(theirs)


def request(prompt: str, max_tokens: int = 12, sampling: Sampling = GREEDY) -> GenerationRequest:
    name = RequestId(f"{prompt}-{max_tokens}")
    return GenerationRequest(name, ModelId("toy"), (), prompt, sampling, max_tokens)


async def collect(chain: Chain, asked: GenerationRequest) -> tuple[list[int], str, Finished]:
    tokens: list[int] = []
    text = ""
    finished: Finished | None = None
    async for event in chain.inbox.generate(asked):
        if isinstance(event, Delta):
            tokens += event.tokens
            text += event.text
        elif isinstance(event, Finished):
            finished = event
    assert finished is not None
    return tokens, text, finished


def alone(prompt: str, max_tokens: int, sampling: Sampling = GREEDY) -> list[int]:
    """What one whole stage, one sequence and no scheduler give."""
    stage = ToyStage(UnitRange(0, len(TOY.shape().units)), TOY, 2048)
    tokens = list(prompt.encode())
    position, number = 0, 0
    drawn: list[int] = []
    while len(drawn) < max_tokens:
        new = tokens[position:]
        row = Row(1, position, len(new), 1, sampling)
        logits = stage.forward(Step(number, (row,), tuple(new)), None)
        position, number = len(tokens), number + 1
        (one,) = draw(logits, [DrawRow(sampling, position)])
        tokens.append(one.token)
        drawn.append(one.token)
        if one.token == 0:
            break
    return drawn
