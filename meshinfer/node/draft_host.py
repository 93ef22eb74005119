"""A draft model in a stage host: loaded whole, then at work on a link to the leader. It opens no
port and ends with its plan."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

from meshinfer.core.draft import DraftTask
from meshinfer.core.together import together
from meshinfer.engine.draft_head import DraftHead
from meshinfer.engine.thread import EngineThread
from meshinfer.link.delayed import HopDelay
from meshinfer.link.dialer import WebSocketDialer
from meshinfer.link.identity import load
from meshinfer.link.trust import Trust
from meshinfer.node.child import ParentPipe
from meshinfer.node.ring_ends import consume
from meshinfer.node.stage_job import ring_facts
from meshinfer.node.stage_loading import load_stage
from meshinfer.node.stage_orders import Left, obey
from meshinfer.serve.draft_worker import DraftModel, DraftWorker
from meshinfer.wire.child import StageJob, StageNews
from meshinfer.wire.commit import StagePhase


async def draft(job: StageJob, task: DraftTask, pipe: ParentPipe) -> None:
    """One plan. Ends by PeerLost when the leader or the agent is gone, by StageFailed."""
    trust = Trust(load(Path(job.state_folder)))
    engine = EngineThread()
    dialer = WebSocketDialer(trust)
    try:
        head = DraftHead(task)
        loaded = await load_stage(engine, job, pipe, head)
        ready = StageNews(StagePhase.READY, 1.0, calibration=loaded.report.to_text())
        model = DraftModel(
            epoch=job.epoch,
            plan=job.plan,
            vocabulary_size=task.vocabulary_size,
            context_length=job.context_length,
            ends=frozenset(task.ends),
            columns=head.columns,
        )
        worker = DraftWorker(loaded.stage, engine, model, time.monotonic)
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
