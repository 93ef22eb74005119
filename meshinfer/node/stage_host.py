"""The stage host process: one stage, its cache, its two ring links; or a whole draft model and its
link to the leader. Started by the agent only.

Takes a StageJob on standard input, tells StageNews on standard output, joins the ring on StageGo.
When the plan is over or the ring breaks, it keeps the stage and waits for the next job, which wants
the same stage; it ends when the agent closes its input. OpenVINO runs on the engine's thread, never
on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from meshinfer.core.draft import DraftTask
from meshinfer.core.ids import Digest
from meshinfer.core.together import together
from meshinfer.engine.compiled_cache import CompiledCache
from meshinfer.engine.mapped_weights import let_go
from meshinfer.engine.paged import StageOptions
from meshinfer.engine.thread import EngineThread
from meshinfer.errors import MeshInferError, StageFailed
from meshinfer.link.base import RING
from meshinfer.link.delayed import HopDelay
from meshinfer.link.dialer import WebSocketDialer
from meshinfer.link.identity import load
from meshinfer.link.server import LinkServer
from meshinfer.link.trust import Trust
from meshinfer.node.calibrated_stage import LoadedStage, StageOrder, load_calibrated
from meshinfer.node.child import ParentPipe
from meshinfer.node.draft_head import DraftHead, draft_model
from meshinfer.node.ring_ends import consume, expect_consumer
from meshinfer.node.stage_job import ring_facts
from meshinfer.serve.draft_priority import lower_own_priority
from meshinfer.serve.draft_worker import DraftWorker
from meshinfer.serve.stage_memory import StageMemory
from meshinfer.serve.stage_worker import StageWorker
from meshinfer.weights.store import Store
from meshinfer.wire.child import StageGo, StageJob, StageLeave, StageNews
from meshinfer.wire.commit import StagePhase

log = logging.getLogger(__name__)


async def load_stage(
    engine: EngineThread, job: StageJob, pipe: ParentPipe, head: DraftHead | None = None
) -> LoadedStage:
    """Compile, calibrate and test on the engine's thread. Raises StageFailed."""
    options = StageOptions(
        device=job.device,
        precision=job.precision,
        cache_tokens=job.cache_tokens,
        threads=job.threads,
        deterministic=job.deterministic,
        compiled=CompiledCache(
            Path(job.state_folder) / "compiled",
            Path(job.stage_folder).name + (head.mark if head else ""),
        ),
        trees=head is None,  # a draft model computes its branches as sequences
    )
    order = StageOrder(
        xml=Path(job.stage_folder) / "openvino_model.xml",
        options=options,
        choice=job.configuration,
        records=Path(job.state_folder) / "calibration",
        probe=Path(job.probe_folder) if job.probe_folder and head is None else None,
        change=head.model if head else None,
    )

    def tell(phase: StagePhase, progress: float) -> None:
        pipe.send(StageNews(phase, progress))

    loaded = await load_calibrated(engine, order, tell)
    shape = loaded.stage.shape
    if shape.input_width != job.input_width:
        raise StageFailed(
            f"The stage takes {shape.input_width} numbers a token, but the plan says "
            f"{job.input_width}.",
            "Pull the model again: it was described by another version.",
        )
    return loaded


async def serve(job: StageJob, pipe: ParentPipe) -> None:
    """One plan after another with the same stage. Ends by PeerLost when the agent is gone, by
    StageFailed when the stage cannot be loaded."""
    trust = Trust(load(Path(job.state_folder)))
    engine = EngineThread()
    try:
        with let_go(Path(job.stage_folder) / "openvino_model.bin"):
            loaded = await load_stage(engine, job, pipe)
        memory = StageMemory(loaded.stage, job.context_length, time.monotonic)
        while True:
            worker = StageWorker(memory, engine, ring_facts(job), job.stage, time.monotonic)
            ready = StageNews(
                StagePhase.READY,
                1.0,
                calibration=loaded.report.to_text(),
                trees=loaded.stage.shape.trees,
            )
            pipe.send(await one_plan(job, pipe, trust, worker, ready))
            job = await next_job(pipe)
    finally:
        await engine.close()


async def draft(job: StageJob, task: DraftTask, pipe: ParentPipe) -> None:
    """One plan. Ends by PeerLost when the leader or the agent is gone, by StageFailed."""
    trust = Trust(load(Path(job.state_folder)))
    engine = EngineThread()
    dialer = WebSocketDialer(trust)
    try:
        head = DraftHead(task)
        loaded = await load_stage(engine, job, pipe, head)
        ready = StageNews(StagePhase.READY, 1.0, calibration=loaded.report.to_text())
        worker = DraftWorker(loaded.stage, engine, draft_model(job, task, head), time.monotonic)
        pipe.send(ready)
        late = HopDelay(trust.identity.node, job.hop_delay_s).dialer(dialer)
        link = await consume(late, ring_facts(job), 0, job.producer, job.producer_addresses)
        pipe.send(replace(ready, phase=StagePhase.SERVING))
        await together(worker.run(link), obey(pipe, asyncio.Event()))
    except Left:
        return
    finally:
        await dialer.close()
        await engine.close()


async def one_plan(
    job: StageJob, pipe: ParentPipe, trust: Trust, worker: StageWorker, ready: StageNews
) -> StageNews:
    """From ready to the end of the plan: how it ended."""
    go = asyncio.Event()

    def tell_ready() -> None:
        pipe.send(ready)

    def tell_serving() -> None:
        pipe.send(replace(ready, phase=StagePhase.SERVING))

    plan = join_ring(job, trust, worker, go, (tell_ready, tell_serving))
    try:
        await together(plan, obey(pipe, go))
    except Left:
        return StageNews(StagePhase.PARKED, 1.0)
    except MeshInferError as error:
        return failure(error)
    raise AssertionError("a ring never ends by itself")


class Left(Exception):
    """The agent took the stage out of its plan."""


async def obey(pipe: ParentPipe, go: asyncio.Event) -> None:
    """Raises Left; PeerLost when the agent is gone."""
    while True:
        match await pipe.receive():
            case StageGo():
                go.set()
            case StageLeave():
                raise Left


async def next_job(pipe: ParentPipe) -> StageJob:
    """Of the same stage: the agent sees to that. Raises PeerLost when it is gone."""
    while True:
        message = await pipe.receive()
        if isinstance(message, StageJob):
            return message


async def join_ring(
    job: StageJob,
    trust: Trust,
    worker: StageWorker,
    go: asyncio.Event,
    tell: tuple[Callable[[], None], Callable[[], None]],
) -> None:
    """Listen for the consumer, say ready, dial the producer on `go`, say serving, then work."""
    tell_ready, tell_serving = tell
    facts = ring_facts(job)
    consumer = expect_consumer(facts, edge=job.stage + 1, consumer=job.consumer)
    hop = HopDelay(trust.identity.node, job.hop_delay_s)
    accept = hop.handler(consumer.accept)
    server = LinkServer(trust, {RING: accept}, on_refused=lambda refusal: None)
    dialer = WebSocketDialer(trust)
    try:
        await server.start(job.listen)
        tell_ready()
        await go.wait()
        # One after the other is enough: who dials us waits for our greeting, whom we dial greets
        # at once.
        late, addresses = hop.dialer(dialer), job.producer_addresses
        upstream = await consume(late, facts, job.stage, job.producer, addresses)
        downstream = await consumer.link()
        tell_serving()
        await worker.run(upstream, downstream)
    finally:
        consumer.release()
        await dialer.close()
        await server.close()


def failure(error: MeshInferError) -> StageNews:
    return StageNews(StagePhase.FAILED, 0.0, error.code, str(error)[:1000])


async def run() -> int:
    pipe = ParentPipe()
    job = await pipe.receive()
    assert isinstance(job, StageJob)
    if job.draft is not None:
        lower_own_priority()
    folder = Path(job.stage_folder)
    try:
        # ROOT/stages/DIGEST: while it is held, nobody makes room in the store by removing it.
        with Store(folder.parent.parent).in_use(Digest(folder.name)):
            if job.draft is not None:
                await draft(job, job.draft, pipe)
            else:
                await serve(job, pipe)
    except MeshInferError as error:
        pipe.send(failure(error))
        return 1
    return 0


def main() -> None:
    # Ctrl-C in a terminal reaches the whole group; the agent ends its children in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(name)s: %(message)s")
    sys.exit(asyncio.run(run()))


if __name__ == "__main__":
    main()
