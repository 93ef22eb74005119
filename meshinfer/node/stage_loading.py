"""From a job to a loaded stage: compiled, calibrated and tested, on the engine's thread. Called by
the stage host."""

from __future__ import annotations

from pathlib import Path

from meshinfer.engine.compiled_cache import CompiledCache
from meshinfer.engine.draft_head import DraftHead
from meshinfer.engine.paged import StageOptions
from meshinfer.engine.thread import EngineThread
from meshinfer.errors import StageFailed
from meshinfer.node.calibrated_stage import LoadedStage, StageOrder, load_calibrated
from meshinfer.node.child import ParentPipe
from meshinfer.wire.child import StageJob, StageNews
from meshinfer.wire.commit import StagePhase


async def load_stage(
    engine: EngineThread, job: StageJob, pipe: ParentPipe, head: DraftHead | None = None
) -> LoadedStage:
    """`head`: it is a draft model. Raises StageFailed."""
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
