"""How a checkpoint is exported: which spans, under which key, and with how much memory. Pure.

The table of tensors and a recipe enter. Called by `run`. Spans and key follow from the checkpoint
alone, never from the machine, so that several PCs may export parts of one model.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from meshinfer.core.units import format_bytes
from meshinfer.errors import NotEnoughMemory, UsageError
from meshinfer.weights.assembly import LayerSpan, even_spans
from meshinfer.weights.export.tensors import CheckpointTensors
from meshinfer.weights.recipe import Recipe

SPAN_BYTES = 400 << 20
"""Layers that are exported at once have about so many bytes, or are one: more take more memory,
fewer take more time (each span is traced, saved and read by itself)."""

BASE_BYTES = 500 << 20
"""torch, transformers, optimum-intel, nncf and OpenVINO in a process that has exported once."""
LAYER_FACTOR = 2.0
"""Memory over the bytes of a span's layers: they are held by torch, mapped from the exported file,
and a matrix at a time is f32 while it is compressed."""


@dataclass(frozen=True, slots=True)
class ExportPlan:
    key: str  # names checkpoint, recipe and versions
    spans: tuple[LayerSpan, ...]
    memory: int  # bytes that the largest span takes, estimated
    most_kept: int  # bytes: a child that keeps more between two parts is replaced by a new one

    def require_memory(self, available: int) -> None:
        """Raises NotEnoughMemory naming both figures."""
        if self.memory > available:
            raise NotEnoughMemory(
                f"Exporting this checkpoint takes about {format_bytes(self.memory)} of memory at "
                f"a time, and {format_bytes(available)} are free.",
                "Close programs, or export on a PC with more memory.",
            )

    def chosen(self, first: int, end: int) -> tuple[LayerSpan, ...]:
        """The spans of the layers [first, end). Raises UsageError naming the borders nearby."""
        borders = sorted({0, *(span.end for span in self.spans)})
        if first not in borders or end not in borders or first >= end:
            raise UsageError(
                f"The layers {first}:{end} do not begin and end where parts do.",
                f"Parts of this checkpoint border at {', '.join(map(str, borders))}.",
            )
        return tuple(span for span in self.spans if first <= span.first and span.end <= end)


def make_plan(
    tensors: CheckpointTensors, recipe: Recipe, versions: str, span_bytes: int = SPAN_BYTES
) -> ExportPlan:
    """`versions` names the libraries that make the parts: what one version exported is not joined
    with what another did."""
    sizes = [tensors.layer_bytes(layer) for layer in range(tensors.layers)]
    longest = max(1, span_bytes // max(sizes))
    spans = even_spans(tensors.layers, longest)
    largest = max(sum(sizes[span.first : span.end]) for span in spans)
    matrix = max(one.size for one in (tensors.embedding, tensors.head) if one is not None)
    return ExportPlan(
        key=_key(tensors, recipe, versions),
        spans=spans,
        memory=BASE_BYTES + int(largest * LAYER_FACTOR) + matrix // 2,
        most_kept=BASE_BYTES + largest // 2,
    )


def _key(tensors: CheckpointTensors, recipe: Recipe, versions: str) -> str:
    """Names, types and shapes of all tensors, and the first bytes of each: two fine-tunes of one
    model differ in these."""
    digest = hashlib.sha256()
    for name in sorted(tensors.by_name):
        tensor = tensors.by_name[name]
        digest.update(f"{name}\0{tensor.dtype}\0{tensor.shape}\0".encode())
        digest.update(tensor.head_bytes())
    return f"export {digest.hexdigest()} {recipe} {versions}"
