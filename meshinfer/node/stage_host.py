"""The stage host process: one stage, its cache, its two ring links. Started by the agent only.

Takes one StageJob on standard input, tells StageNews on standard output, joins the ring on StageGo,
and ends when the ring breaks or the agent is gone. OpenVINO runs on the engine's thread, never on
the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time
from pathlib import Path

from meshinfer.core.ids import Digest
from meshinfer.core.together import together
from meshinfer.engine.compiled_cache import CompiledCache
from meshinfer.engine.mapped_weights import let_go
from meshinfer.engine.paged import StageOptions
from meshinfer.engine.thread import EngineThread
from meshinfer.errors import MeshInferError, StageFailed
from meshinfer.link.base import RING
from meshinfer.link.dialer import WebSocketDialer
from meshinfer.link.identity import load
from meshinfer.link.server import LinkServer
from meshinfer.link.trust import Trust
from meshinfer.node.calibrated_stage import DEFAULT, LoadedStage, StageOrder, load_calibrated
from meshinfer.node.child import ParentPipe
from meshinfer.node.ring_ends import consume, expect_consumer
from meshinfer.node.stage_job import ring_facts
from meshinfer.serve.stage_worker import StageWorker
from meshinfer.weights.store import Store
from meshinfer.wire.child import StageJob, StageNews
from meshinfer.wire.commit import StagePhase

log = logging.getLogger(__name__)


async def load_stage(engine: EngineThread, job: StageJob, pipe: ParentPipe) -> LoadedStage:
    """Compile, calibrate and test on the engine's thread. Raises StageFailed."""
    options = StageOptions(
        device=job.device,
        precision=job.precision,
        cache_tokens=job.cache_tokens,
        threads=job.threads,
        deterministic=job.deterministic,
        compiled=CompiledCache(Path(job.state_folder) / "compiled", Path(job.stage_folder).name),
    )
    order = StageOrder(
        xml=Path(job.stage_folder) / "openvino_model.xml",
        options=options,
        choice=DEFAULT,
        records=Path(job.state_folder) / "calibration",
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
    """Until the ring breaks (an error) or the agent is gone (PeerLost)."""
    trust = Trust(load(Path(job.state_folder)))
    engine = EngineThread()
    try:
        with let_go(Path(job.stage_folder) / "openvino_model.bin"):
            stage = (await load_stage(engine, job, pipe)).stage
        await join_ring(
            job, pipe, trust, StageWorker(stage, engine, ring_facts(job), job.stage, time.monotonic)
        )
    finally:
        await engine.close()


async def join_ring(job: StageJob, pipe: ParentPipe, trust: Trust, worker: StageWorker) -> None:
    """Listen for the consumer, say ready, dial the producer on `go`, then work."""
    facts = ring_facts(job)
    consumer = expect_consumer(facts, edge=job.stage + 1, consumer=job.consumer)
    server = LinkServer(trust, {RING: consumer.accept}, on_refused=lambda refusal: None)
    dialer = WebSocketDialer(trust)
    try:
        await server.start(job.listen)
        pipe.send(StageNews(StagePhase.READY, 1.0))
        await pipe.receive()  # StageGo
        # One after the other is enough: who dials us waits for our greeting, whom we dial greets
        # at once.
        upstream = await consume(dialer, facts, job.stage, job.producer, job.producer_addresses)
        downstream = await consumer.link()
        pipe.send(StageNews(StagePhase.SERVING, 1.0))
        await together(worker.run(upstream, downstream), pipe.closed())
    finally:
        consumer.release()
        await dialer.close()
        await server.close()


async def run() -> int:
    pipe = ParentPipe()
    job = await pipe.receive()
    assert isinstance(job, StageJob)
    folder = Path(job.stage_folder)
    try:
        # ROOT/stages/DIGEST: while it is held, nobody makes room in the store by removing it.
        with Store(folder.parent.parent).in_use(Digest(folder.name)):
            await serve(job, pipe)
    except MeshInferError as error:
        pipe.send(StageNews(StagePhase.FAILED, 0.0, error.code, str(error)[:1000]))
        return 1
    return 0


def main() -> None:
    # Ctrl-C in a terminal reaches the whole group; the agent ends its children in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(name)s: %(message)s")
    sys.exit(asyncio.run(run()))


if __name__ == "__main__":
    main()
