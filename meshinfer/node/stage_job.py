"""From a held plan to the job of a stage host, and from the job to what its frames must carry."""

from __future__ import annotations

from dataclasses import dataclass, replace

from meshinfer.core.draft import DraftTask
from meshinfer.core.fleet import Address, FleetView
from meshinfer.core.ids import NodeId
from meshinfer.errors import StageFailed
from meshinfer.serve.ring import RingFacts
from meshinfer.wire.child import StageJob
from meshinfer.wire.commit import Prepare


@dataclass(frozen=True, slots=True)
class KeeperOptions:
    """How stages run here."""

    state_folder: str
    listen: Address  # of the stage host
    threads: int
    deterministic: bool
    configuration: str = "default"
    hop_delay_s: float = 0.0  # added to what other PCs send over the ring


def ring_facts(job: StageJob) -> RingFacts:
    """What every frame on this stage's edges must carry."""
    return RingFacts(
        epoch=job.epoch,
        plan=job.plan,
        pipeline=job.pipeline,
        stages=job.stages,
        precision=job.precision,
        input_width=job.input_width,
        vocabulary_size=job.vocabulary_size,
        context_length=job.context_length,
    )


def stage_job(
    prepared: Prepare,
    leader: NodeId,
    place: tuple[int, int],
    options: KeeperOptions,
    view: FleetView,
) -> StageJob:
    """What the stage host must know; the folders are filled in when they are there."""
    plan, shape = prepared.plan, prepared.shape
    pipeline, stage = place
    stages = plan.pipelines[pipeline].stages
    return StageJob(
        state_folder=options.state_folder,
        stage_folder="",
        device=stages[stage].device,
        threads=options.threads,
        deterministic=options.deterministic,
        configuration=options.configuration,
        probe_folder="",
        epoch=plan.epoch,
        plan=plan.id,
        pipeline=pipeline,
        stage=stage,
        stages=len(stages),
        precision=plan.precision,
        cache_tokens=plan.cache_tokens,
        input_width=shape.input_width(stages[stage].units),
        vocabulary_size=shape.vocabulary_size,
        context_length=plan.context_length,
        listen=options.listen,
        producer=stages[stage - 1].node if stage else leader,
        producer_addresses=(
            stages[stage - 1].ring_addresses if stage else _addresses(leader, view)
        ),
        consumer=stages[stage + 1].node if stage + 1 < len(stages) else leader,
        hop_delay_s=options.hop_delay_s,
    )


def draft_job(
    prepared: Prepare,
    leader: NodeId,
    task: DraftTask,
    options: KeeperOptions,
    view: FleetView,
) -> StageJob:
    """The same for the plan's draft model. Raises StageFailed: the plan has none."""
    plan = prepared.plan
    if plan.draft is None:
        raise StageFailed("The plan has no draft model.", "This is a bug: report it.")
    return replace(
        stage_job(prepared, leader, (0, 0), options, view),  # a first stage, and the only one
        device=plan.draft.stage.device,
        deterministic=False,
        configuration="default" if options.deterministic else options.configuration,
        pipeline=plan.draft_pipeline,
        stages=1,
        precision="f32",
        cache_tokens=plan.draft.cache_tokens,
        vocabulary_size=task.vocabulary_size,
        context_length=plan.draft.context_length,
        consumer=leader,
        draft=task,
    )


def _addresses(leader: NodeId, view: FleetView) -> tuple[Address, ...]:
    member = view.member(leader)
    return member.agent_addresses if member is not None else ()
