"""The weights process: gets, reads and cuts models. Started by an agent, ends after one job.

OpenVINO's model reader stays out of the agent: an agent without a stage is small, and a damaged
file takes down a child.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from pathlib import Path

from meshinfer.errors import MeshInferError
from meshinfer.node.child import ParentPipe
from meshinfer.node.probe_inputs import probe_inputs
from meshinfer.node.stores import StoreChoice
from meshinfer.weights.catalogue import Catalogue
from meshinfer.weights.folder import find_folder
from meshinfer.weights.obtain import catalogue_source
from meshinfer.weights.prepare import prepare
from meshinfer.weights.progress import Progress
from meshinfer.weights.recipe import Recipe
from meshinfer.weights.source import Source, read_source
from meshinfer.weights.split import split
from meshinfer.wire.child import WeightsDone, WeightsFailed, WeightsJob, WeightsNews


def work(job: WeightsJob, pipe: ParentPipe) -> WeightsDone:
    """Do the job. Raises MeshInferError."""

    def tell(progress: Progress) -> None:
        pipe.send(WeightsNews(progress.phase, progress.done_bytes, progress.total_bytes))

    if job.kind == "pull":
        if job.source:
            source: Source = read_source(job.source, Catalogue.load().names)
        else:  # never a folder that happens to have the model's name
            source = catalogue_source(job.model)
        recipe = Recipe.parse(job.recipe) if job.recipe else None
        folder = prepare(source, Path(job.models_folder), recipe, tell, job.model)
        return WeightsDone(str(folder.path), ())
    folder = find_folder(Path(job.models_folder), job.model)
    if job.kind == "probe":
        return WeightsDone(
            str(folder.path), (), probe_inputs(folder, job.ranges, Path(job.probes_folder))
        )
    manifests = split(folder, job.ranges, StoreChoice.told(job.store).open(), tell)
    return WeightsDone(str(folder.path), manifests)


async def run() -> int:
    pipe = ParentPipe()
    job = await pipe.receive()
    assert isinstance(job, WeightsJob)
    try:
        pipe.send(await asyncio.to_thread(work, job, pipe))
    except MeshInferError as error:
        pipe.send(WeightsFailed(error.code, error.cause, error.remedy))
        return 1
    return 0


def main() -> None:
    # Ctrl-C in a terminal reaches the whole group; the agent ends its children in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(name)s: %(message)s")
    sys.exit(asyncio.run(run()))


if __name__ == "__main__":
    main()
