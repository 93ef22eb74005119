"""A safetensors checkpoint becomes an OpenVINO model, range by range, in bounded memory.

A checkpoint folder and a Recipe enter; model, tokenizer and detokenizer lie in the work folder, and
ModelFacts leave. Called by `prepare` and by `meshinfer export`, in the weights process. torch is
imported by a child process only: it returns all its memory, and its crash is an error here. A call
that was interrupted goes on with the parts that are missing; parts may also come from other PCs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import psutil

from meshinfer.weights.assembly import Assembly, LayerSpan
from meshinfer.weights.disk import require_room
from meshinfer.weights.export.installed import export_versions
from meshinfer.weights.export.orders import Order
from meshinfer.weights.export.plan import SPAN_BYTES, ExportPlan, make_plan
from meshinfer.weights.export.process import ExportProcess, remove_log
from meshinfer.weights.export.settings import read_settings
from meshinfer.weights.export.tensors import CheckpointTensors
from meshinfer.weights.facts import ModelFacts
from meshinfer.weights.progress import Progress, Tell
from meshinfer.weights.recipe import Recipe, WeightFormat

_PLAIN = (WeightFormat.F16, WeightFormat.BF16, WeightFormat.ORIGINAL)


def export_checkpoint(
    checkpoint: Path, work: Path, recipe: Recipe, progress: Tell, span_bytes: int = SPAN_BYTES
) -> ModelFacts:
    """Export what is missing and join it to the whole. Blocks for minutes.

    Raises UsageError (the extra is not installed), StageFailed (the model cannot be exported),
    ShardCorrupt (the checkpoint is damaged), NotEnoughMemory, DiskFull.
    """
    job = _Job(checkpoint, work, recipe, progress, span_bytes)
    facts = job.make(job.plan.spans, needs_facts=True)
    assert facts is not None
    job.assembly.finish()
    remove_log(work)
    return facts


def export_ranges(
    checkpoint: Path,
    work: Path,
    recipe: Recipe,
    layers: tuple[int, int],
    progress: Tell,
    span_bytes: int = SPAN_BYTES,
) -> tuple[LayerSpan, ...]:
    """Export the parts of the layers [first, end) into `work`/parts and leave them there. Copied
    into the work folder of another PC, they count as made by it. Returns what is still missing of
    the whole model.

    Raises what `export_checkpoint` does, and UsageError when no part begins or ends there.
    """
    job = _Job(checkpoint, work, recipe, progress, span_bytes)
    job.make(job.plan.chosen(*layers), needs_facts=False)
    remove_log(work)
    return job.assembly.missing


class _Job:
    def __init__(
        self, checkpoint: Path, work: Path, recipe: Recipe, progress: Tell, span_bytes: int
    ) -> None:
        versions = export_versions()
        settings = read_settings(checkpoint)
        tensors = CheckpointTensors.open(checkpoint, settings.layers)
        self.plan: ExportPlan = make_plan(tensors, recipe, versions, span_bytes)
        # Parts and the whole lie side by side at the end; INT4 with its scales is 0.3 of half
        # precision, and one part lies there uncompressed for a while.
        require_room(work, int(tensors.total_bytes * (2.1 if recipe.format in _PLAIN else 1.0)))
        work.mkdir(parents=True, exist_ok=True)
        self.assembly = Assembly(work, self.plan.key, self.plan.spans)
        self._progress = progress
        self._bytes = {
            span: sum(tensors.layer_bytes(layer) for layer in range(span.first, span.end))
            for span in self.plan.spans
        }
        self._order = Order(
            checkpoint=checkpoint.resolve(),
            work=work.resolve(),
            recipe=recipe,
            key=self.plan.key,
            spans=self.plan.spans,
            wanted=(),
            with_tokenizer=False,
            most_memory=self.plan.most_kept,
        )

    def make(self, wanted: Sequence[LayerSpan], needs_facts: bool) -> ModelFacts | None:
        """Have the parts `wanted`, with as many children as it takes: one that keeps too much
        memory ends early."""
        facts: ModelFacts | None = None
        while True:
            missing = self._show(wanted)
            if not missing and (facts is not None or not needs_facts):
                return facts
            self.plan.require_memory(psutil.virtual_memory().available)
            order = replace(
                self._order, wanted=missing, with_tokenizer=needs_facts and facts is None
            )
            with ExportProcess(order) as process:
                for news in process.news():
                    facts = news.facts or facts
                    if news.made is not None:
                        self._show(wanted)

    def _show(self, wanted: Sequence[LayerSpan]) -> tuple[LayerSpan, ...]:
        """Tell how far it is; returns what is missing."""
        missing = tuple(span for span in self.assembly.missing if span in wanted)
        total = sum(self._bytes[span] for span in wanted)
        left = sum(self._bytes[span] for span in missing)
        self._progress(Progress("export", total - left, total))
        return missing
