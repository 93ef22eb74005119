"""One stage or draft model of a held plan: checked, fetched, run, and reported on to the leader."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

from meshinfer.core.ids import NodeId
from meshinfer.core.model import StageManifest
from meshinfer.core.seal import Seal
from meshinfer.core.together import together
from meshinfer.engine.calibration_input import PROBE_FILE
from meshinfer.errors import MeshInferError, StageFailed
from meshinfer.mesh.atomic_file import replace_bytes
from meshinfer.node.held_plan import StagePart
from meshinfer.node.seals import Seals
from meshinfer.node.stage_runner import StageRunner
from meshinfer.wire.child import StageNews
from meshinfer.wire.commit import StagePhase

REPORT_EVERY_S = 1.0

Fetch = Callable[[StageManifest, tuple[NodeId, ...], Callable[[int, int], None]], Awaitable[Path]]
"""Have a stage's files on disk, verified; tells (done, total) bytes as it goes."""

Answer = Callable[[NodeId, object], Awaitable[None]]
"""Tell a leader; one that is gone does not matter."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SentStage:
    """What the leader sent of one stage; `sources` may hold its pieces."""

    manifest: StageManifest
    seal: Seal
    probe: bytes
    sources: tuple[NodeId, ...]


class PartKeeper:
    """`probes` is the folder of what stages are calibrated on."""

    def __init__(
        self, answer: Answer, runner: StageRunner, fetch: Fetch, seals: Seals, probes: Path
    ) -> None:
        self._answer = answer
        self._runner = runner
        self._fetch = fetch
        self._seals = seals
        self._probes = probes

    async def serve(
        self,
        part: StagePart,
        sent: SentStage,
        go: asyncio.Event,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Check, fetch, load, run; whatever ends it is told to the leader, and raised. `check` is
        asked once more before it is loaded."""
        try:
            self._seals.signer(sent.manifest.digest, sent.seal)
            await together(self._keep_reporting(part), self._run(part, sent, go, check))
        except MeshInferError as error:
            await self._report_failure(part, error)
            raise
        except Exception as bug:
            # outermost frame of a stage: a bug in one must not end the agent
            log.exception("stage %d failed in an unexpected way", part.job.stage)
            failure = StageFailed("An unexpected error; the log of this PC has the details.")
            await self._report_failure(part, failure)
            raise failure from bug

    async def _report_failure(self, part: StagePart, error: MeshInferError) -> None:
        part.note(StageNews(StagePhase.FAILED, 0.0, error.code, str(error)[:1000]))
        await self._answer(part.held.leader, part.report)

    async def _run(
        self, part: StagePart, sent: SentStage, go: asyncio.Event, check: Callable[[], None]
    ) -> None:
        def fetched(done: int, total: int) -> None:
            part.note(StageNews(StagePhase.FETCHING, done / max(1, total)))

        folder = await self._fetch(sent.manifest, sent.sources, fetched)
        check()
        part.note(StageNews(StagePhase.LOADING, 0.0))
        probe = await asyncio.to_thread(self._keep_probe, sent)
        job = replace(part.job, stage_folder=str(folder), probe_folder=probe)
        await self._runner.run(job, go, part.note)

    def _keep_probe(self, sent: SentStage) -> str:
        """The folder of the stage's probe; empty when there is none, or no room for it."""
        if not sent.probe:
            return ""
        folder = self._probes / sent.manifest.digest[:24]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            replace_bytes(folder / PROBE_FILE, sent.probe)
        except OSError as error:
            log.warning("a stage is calibrated without its probe: %s", error)
            return ""
        return str(folder)

    async def _keep_reporting(self, part: StagePart) -> None:
        """News at once, and the newest again every second: silence then means trouble."""
        while True:
            await self._answer(part.held.leader, part.report)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REPORT_EVERY_S):
                    await part.changed.wait()
            part.changed.clear()
