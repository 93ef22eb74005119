"""One span of a checkpoint's layers becomes a part of the assembly.

Checkpoint, span and recipe enter; the part lies in the assembly. Called by the child, span by span.
"""

from __future__ import annotations

import gc
import shutil
from pathlib import Path
from typing import Any

from meshinfer.core.model import UnitKind, UnitRange
from meshinfer.errors import StageFailed
from meshinfer.weights.assembly import Assembly, LayerSpan
from meshinfer.weights.cut import cut, openvino_errors, read_model
from meshinfer.weights.cut_points import find_units
from meshinfer.weights.disk import disk_errors
from meshinfer.weights.export.compression import compress
from meshinfer.weights.export.graph import export_graph
from meshinfer.weights.export.range_model import build
from meshinfer.weights.export.tensors import CheckpointTensors
from meshinfer.weights.export.vocabulary import put_in, stand_in_rows
from meshinfer.weights.recipe import Recipe, WeightFormat

_DTYPES = {WeightFormat.F16: "F16", WeightFormat.BF16: "BF16"}


class PartMaker:
    """Makes parts of one model. `config` is transformers' configuration of the whole."""

    def __init__(
        self, config: Any, tensors: CheckpointTensors, recipe: Recipe, assembly: Assembly
    ) -> None:
        self._config = config
        self._tensors = tensors
        self._recipe = recipe
        self._assembly = assembly
        self._dtype = _DTYPES.get(recipe.format, tensors.main_dtype())
        self._rows = stand_in_rows(tensors)

    def make(self, span: LayerSpan, scratch: Path) -> None:
        """Export `span` and add it to the assembly. `scratch` is a folder for files of the
        meantime. Raises ShardCorrupt, StageFailed, DiskFull."""
        shutil.rmtree(scratch, ignore_errors=True)
        with disk_errors(scratch):
            scratch.mkdir(parents=True)
            try:
                plain = self._export(span, scratch / "plain")
                gc.collect()  # torch's copy of the weights, before the file is mapped
                part = self._cut(self._compressed(plain, scratch), span)
                put_in(part, self._tensors, self._recipe, self._rows)
                self._assembly.add(span, part)
                del part
            finally:
                gc.collect()  # the files are mapped as long as a model is alive
                shutil.rmtree(scratch, ignore_errors=True)

    def _export(self, span: LayerSpan, folder: Path) -> Path:
        tensors = self._tensors.of_span(span)
        model = build(self._config, span, tensors, self._dtype, self._rows)
        return export_graph(model, folder, self._recipe)

    def _compressed(self, plain: Path, scratch: Path) -> Path:
        """The path of the compressed model; it takes a file to cut one without copying it."""
        import openvino as ov

        path = scratch / "compressed.xml"
        model = compress(read_model(plain), self._recipe)
        with disk_errors(scratch), openvino_errors("Saving the compressed layers"):
            ov.save_model(model, path, compress_to_fp16=False)
        return path

    def _cut(self, path: Path, span: LayerSpan) -> Any:
        """Without the stand-ins that this part does not need."""
        kinds = tuple(one.unit.kind for one in find_units(read_model(path)))
        return cut(path, outer_units(kinds, span, self._tensors.layers))


def outer_units(kinds: tuple[UnitKind, ...], span: LayerSpan, layers: int) -> UnitRange:
    """The units of a span's model without its stand-ins: the first part of a model keeps its
    embedding, the last its head. Raises StageFailed when they cannot be told apart."""
    if len(kinds) < 3 or kinds[0] is not UnitKind.EMBEDDING or kinds[-1] is not UnitKind.HEAD:
        raise StageFailed(
            f"The layers {span} cannot be taken out of what the exporter made: it has the parts "
            f"{', '.join(kinds)}.",
            "Choose a GGUF or an OpenVINO IR of this model.",
        )
    return UnitRange(0 if span.first == 0 else 1, len(kinds) - (0 if span.end == layers else 1))
