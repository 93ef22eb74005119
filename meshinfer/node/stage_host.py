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

from meshinfer.core.ids import Digest
from meshinfer.core.together import together
from meshinfer.engine.mapped_weights import let_go
from meshinfer.engine.thread import EngineThread
from meshinfer.errors import MeshInferError
from meshinfer.link.base import RING
from meshinfer.link.delayed import HopDelay
from meshinfer.link.dialer import WebSocketDialer
from meshinfer.link.identity import load
from meshinfer.link.server import LinkServer
from meshinfer.link.trust import Trust
from meshinfer.node.child import ParentPipe
from meshinfer.node.draft_host import draft
from meshinfer.node.ring_ends import consume, expect_consumer
from meshinfer.node.stage_job import ring_facts
from meshinfer.node.stage_loading import load_stage
from meshinfer.node.stage_orders import Left, next_job, obey
from meshinfer.serve.draft_priority import lower_own_priority
from meshinfer.serve.stage_memory import StageMemory
from meshinfer.serve.stage_worker import StageWorker
from meshinfer.weights.store import Store
from meshinfer.wire.child import StageJob, StageNews
from meshinfer.wire.commit import StagePhase

log = logging.getLogger(__name__)


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
