"""N nodes in one process: real mesh, real commits, real ring over in-memory links, toy stages.

Only what a LAN, a disk and OpenVINO would add is replaced, by the twins that ship in the package
(link.memory, engine.toy) and by the two small classes here.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from meshinfer.core.draft import DraftTask
from meshinfer.core.fleet import Address, Capacity, Device
from meshinfer.core.ids import Digest, Epoch, ModelId, NodeId, RequestId
from meshinfer.core.model import ModelShape, StageManifest, UnitRange
from meshinfer.core.request import GREEDY, Delta, GenerationRequest
from meshinfer.engine.grammar import GrammarCompiler
from meshinfer.engine.thread import EngineThread
from meshinfer.engine.toy import ToyModel, ToyStage
from meshinfer.engine.toy_tokenizer import BEGIN_TOKEN, END_TOKEN, ByteTokenizer
from meshinfer.errors import StageFailed
from meshinfer.link.base import MESH, RING, Link
from meshinfer.link.identity import found
from meshinfer.link.memory import MemoryDialer, MemoryNetwork
from meshinfer.link.seal import Sealer
from meshinfer.link.trust import Trust
from meshinfer.mesh.runner import Mesh
from meshinfer.mesh.timing import ElectionTiming, MeshTiming
from meshinfer.mesh.world import Me, World
from meshinfer.node.draft_choice import DraftChoice
from meshinfer.node.node import Node, NodeParts
from meshinfer.node.planning import FleetPlanner
from meshinfer.node.ring_ends import ExpectedConsumer, consume
from meshinfer.node.stage_job import KeeperOptions, ring_facts
from meshinfer.node.stage_runner import Tell
from meshinfer.node.term_tools import TermOptions
from meshinfer.serve.draft_worker import DraftModel, DraftWorker
from meshinfer.serve.encoder import ThreadedEncoder
from meshinfer.serve.inbox import Encoder, Language
from meshinfer.serve.stage_memory import StageMemory
from meshinfer.serve.stage_worker import StageWorker
from meshinfer.wire.child import StageJob, StageNews
from meshinfer.wire.commit import StagePhase

TOY = ToyModel(layers=6, hidden_size=8, vocabulary_size=258, seed=5)
DRAFT_ID = ModelId("toy-draft")
TOY_ID = ModelId("toy")
MEMORY = 1 << 30
FAST = MeshTiming(
    election=ElectionTiming(
        renew_s=0.1, lease_s=1.0, demote_s=0.8, lone_s=0.2, lone_dialling_s=0.4, settle_s=0.03,
        jitter_s=0.05, campaign_s=0.2, await_better_s=0.25, await_leader_s=0.6, decide_s=1.2,
    ),
    tick_s=0.02, heartbeat_s=0.1, suspect_s=0.5, dead_s=1.0, redial_grace_s=0.1,
    redial_first_s=0.1, dial_s=0.5,
)  # fmt: skip


class MemoryEpochs:
    def __init__(self) -> None:
        self.epoch = Epoch(0, NodeId(""))

    def load(self) -> Epoch:
        return self.epoch

    def save(self, epoch: Epoch) -> None:
        self.epoch = max(self.epoch, epoch)


class NoPeers:
    def load(self) -> dict[NodeId, tuple[Address, ...]]:
        return {}

    def save(self, known: dict[NodeId, tuple[Address, ...]]) -> None:
        pass


def grammars() -> GrammarCompiler:
    tokenizer = ByteTokenizer()
    special = {BEGIN_TOKEN, END_TOKEN}
    return GrammarCompiler(
        tokenizer.vocabulary(), TOY.vocabulary_size, special, {END_TOKEN}, tokenizer.encode_text
    )


class ToyLibrary:
    """One toy model that every PC has. Implements node.leader_term.Library."""

    def __init__(self) -> None:
        self._encoder = ThreadedEncoder(ByteTokenizer(), grammars)

    def choice(self) -> ModelId | None:
        return TOY_ID

    async def ready(self, model: ModelId, tell: object) -> ModelShape:
        return replace(TOY.shape(), context_length=1024)

    async def split(
        self, model: ModelId, ranges: tuple[UnitRange, ...], tell: object
    ) -> tuple[StageManifest, ...]:
        def digest(units: UnitRange) -> Digest:
            return Digest(hashlib.sha256(str(units).encode()).hexdigest())

        whole = TOY.shape().digest
        return tuple(StageManifest(model, whole, one, "-", (), digest(one)) for one in ranges)

    async def probes(
        self, model: ModelId, ranges: tuple[UnitRange, ...], tell: object
    ) -> tuple[bytes, ...]:
        return (b"",) * len(ranges)

    async def text(self, model: ModelId, context_length: int) -> tuple[Encoder, Language]:
        special = frozenset({BEGIN_TOKEN, END_TOKEN})
        vocabulary = ByteTokenizer().vocabulary()
        return self._encoder, Language(vocabulary, {END_TOKEN}, special, context_length)

    def created(self, model: ModelId) -> int:
        return 7

    speculates = True
    has_draft = False

    async def draft(self, model: ModelId, tell: object) -> DraftChoice:
        if not self.has_draft:
            return DraftChoice(None)
        return DraftChoice(replace(TOY.shape(), model=DRAFT_ID, context_length=1024))

    def close(self) -> None:
        self._encoder.close()


class ToyRunner:
    """A stage in this process. Implements node.stage_runner.StageRunner."""

    def __init__(self, network: MemoryNetwork, dialer: MemoryDialer, node: NodeId) -> None:
        self._network = network
        self._dialer = dialer
        self._node = node
        self.stages: list[ToyStage] = []
        self.draft_faults: list[StageFailed] = []  # what the next drafts fail with
        self.drafts_fail_late = False  # once they have said that they are ready
        self.draft_links: list[Link] = []  # to leaders, the newest last

    async def run(self, job: StageJob, go: asyncio.Event, tell: Tell) -> None:
        if job.draft is not None:
            await self._draft(job, job.draft, tell)
        first, end = (int(word) for word in Path(job.stage_folder).name.split("-"))
        stage = ToyStage(UnitRange(first, end), TOY, job.cache_tokens, block_size=32)
        facts = ring_facts(job)
        consumer = ExpectedConsumer(facts, job.stage + 1, job.consumer)
        stop = self._network.listen(job.listen, self._node, {RING: consumer.accept})
        engine = EngineThread()
        self.stages.append(stage)
        try:
            tell(StageNews(StagePhase.READY, 1.0))
            await go.wait()
            addresses = job.producer_addresses
            upstream = await consume(self._dialer, facts, job.stage, job.producer, addresses)
            downstream = await consumer.link()
            tell(StageNews(StagePhase.SERVING, 1.0))
            memory = StageMemory(stage, job.context_length, time.monotonic)
            worker = StageWorker(memory, engine, facts, job.stage, time.monotonic)
            await worker.run(upstream, downstream)
        finally:
            stop()
            consumer.release()
            self.stages.remove(stage)
            await engine.close()

    async def _draft(self, job: StageJob, task: DraftTask, tell: Tell) -> None:
        """The same toy guesses what the toy will say."""
        if self.draft_faults:
            if self.drafts_fail_late:
                tell(StageNews(StagePhase.READY, 1.0))
                await asyncio.sleep(0)  # it is told at once
            raise self.draft_faults.pop(0)
        stage = ToyStage(UnitRange(0, len(TOY.shape().units)), TOY, job.cache_tokens, block_size=32)
        model = DraftModel(
            epoch=job.epoch,
            plan=job.plan,
            vocabulary_size=task.vocabulary_size,
            context_length=job.context_length,
            ends=frozenset(task.ends),
        )
        engine = EngineThread()
        try:
            tell(StageNews(StagePhase.READY, 1.0))
            addresses = job.producer_addresses
            link = await consume(self._dialer, ring_facts(job), 0, job.producer, addresses)
            self.draft_links.append(link)
            tell(StageNews(StagePhase.SERVING, 1.0))
            await DraftWorker(stage, engine, model, time.monotonic).run(link)
        finally:
            await engine.close()


@dataclass(slots=True)
class ToyNode:
    """One PC of the toy fleet."""

    id: NodeId
    node: Node
    mesh: Mesh
    runner: ToyRunner
    library: ToyLibrary
    task: asyncio.Task[None]


class ToyFleet:
    """Start and stop PCs, ask questions, wait for states. Every wait has a deadline."""

    has_draft = False  # of PCs that start from now on

    def __init__(self, state_dir: Path) -> None:
        self.network = MemoryNetwork()
        self.nodes: dict[str, ToyNode] = {}
        self._epochs: dict[str, MemoryEpochs] = {}
        self._starts: dict[str, int] = {}
        self.seals = Sealer(Trust(found(state_dir)))

    def start(self, name: str, memory: int = MEMORY, stages: int | None = None) -> ToyNode:
        """A PC that knows the addresses of those already there."""
        node_id = NodeId(name.ljust(52, "x"))
        agent, ring = Address(name, 1), Address(name, 2)
        dialer = self.network.dialer(node_id, agent)
        self._starts[name] = self._starts.get(name, 0) + 1
        device = Device("CPU", "toy", memory, ("f32",))
        capacity = Capacity(memory, memory, 1, (device,), "2026.4.1")
        world = World(
            clock=time.monotonic, wall_clock=time.time, random=random.Random(name),
            epochs=self._epochs.setdefault(name, MemoryEpochs()), known_peers=NoPeers(),
            capacity=lambda: capacity, holds_model=lambda: True,
            next_incarnation=lambda: self._starts[name] + 1000,
        )  # fmt: skip
        me = Me(node_id, name, self._starts[name], (agent,), (ring,), "test")
        seeds = tuple(Address(other, 1) for other in self.nodes)
        mesh = Mesh(me, dialer, world, FAST, seeds=seeds)
        library = ToyLibrary()
        library.has_draft = self.has_draft
        runner = ToyRunner(self.network, dialer, node_id)

        async def fetch(manifest: StageManifest, sources: object, tell: object) -> Path:
            return Path(f"{manifest.units.first}-{manifest.units.end}")

        node = Node(
            NodeParts(
                mesh=mesh, library=library, runner=runner, fetch=fetch, dialer=dialer,
                seals=self.seals, plan_for=FleetPlanner("f32", stages), room=lambda: memory,
                clock=time.monotonic,
                keeper=KeeperOptions("", ring, 0, False),
                term=TermOptions(settle_s=0.15, retry_s=0.1, recheck_s=0.2),
            )
        )  # fmt: skip
        self.network.listen(agent, node_id, {MESH: node.accept_mesh, RING: node.accept_ring})
        toy = ToyNode(node_id, node, mesh, runner, library, asyncio.create_task(node.run()))
        self.nodes[name] = toy
        return toy

    async def kill(self, name: str) -> None:
        """Power off: its links break, nothing is said."""
        toy = self.nodes.pop(name)
        await self.network.kill(toy.id)
        await end(toy)

    async def close(self) -> None:
        for toy in self.nodes.values():
            await end(toy)
        await self.network.close()

    async def until(self, reached: Callable[[], bool], what: str, seconds: float = 15.0) -> None:
        deadline = time.monotonic() + seconds
        while not reached():
            for toy in self.nodes.values():
                if toy.task.done():
                    toy.task.result()
            assert time.monotonic() < deadline, f"never: {what}; {self.describe()}"
            await asyncio.sleep(0.01)

    def describe(self) -> str:
        return "; ".join(
            f"{name}: leader {str(toy.mesh.view.leader)[:4]}, "
            f"{(toy.node.door.document() or {}).get('model')}"
            for name, toy in self.nodes.items()
        )

    def leader(self) -> ToyNode | None:
        leaders = [toy for toy in self.nodes.values() if toy.node.door.term is not None]
        return leaders[0] if len(leaders) == 1 else None

    def is_ready(self) -> bool:
        """One leader, and every PC knows that the model is served."""
        states = [(toy.node.door.document() or {}).get("model") for toy in self.nodes.values()]
        return self.leader() is not None and all(
            state is not None and state["state"] == "ready" for state in states
        )

    async def ready(self) -> None:
        await self.until(self.is_ready, "ready")

    def stages(self) -> list[tuple[int, int]]:
        """(first, last) layer of each stage of the plan that serves."""
        leader = self.leader()
        assert leader is not None
        assert leader.node.door.term is not None
        plan = leader.node.door.term.board.plan
        assert plan is not None
        return [(one.first_layer, one.last_layer) for one in plan.pipelines[0].stages]


async def end(toy: ToyNode) -> None:
    toy.task.cancel()
    await asyncio.wait([toy.task])
    toy.library.close()


@asynccontextmanager
async def toy_fleet(*names: str, **options: int) -> AsyncIterator[ToyFleet]:
    with tempfile.TemporaryDirectory() as state_dir:
        fleet = ToyFleet(Path(state_dir))
        try:
            for name in names:
                fleet.start(name, **options)
            yield fleet
        finally:
            await fleet.close()


def question(text: str, max_tokens: int = 12) -> GenerationRequest:
    return GenerationRequest(
        RequestId(f"{text}{max_tokens}{random.random()}"), TOY_ID, (), text, GREEDY, max_tokens
    )


async def answer(toy: ToyNode, request: GenerationRequest) -> list[int]:
    tokens: list[int] = []
    async for event in toy.node.door.generate(request):
        if isinstance(event, Delta):
            tokens += event.tokens
    return tokens
