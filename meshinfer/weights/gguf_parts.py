"""One range of a GGUF becomes a part of the whole IR, in the form that the recipe asks for.

    WORK/range/model.gguf           the range, for openvino_genai's reader
    WORK/range/openvino_model.xml   as the reader has it: f16
    WORK/range/new.xml              with the weights in their new form

A span of layers enters, its ov.Model leaves, and with it two models of the bare layers, for the
comparison. Called by the conversion. Memory follows the range in f16, three times.
"""

from __future__ import annotations

import gc
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshinfer.core.model import UnitRange
from meshinfer.errors import StageFailed
from meshinfer.weights.assembly import LayerSpan
from meshinfer.weights.cut import cut, openvino_errors, read_model
from meshinfer.weights.disk import disk_errors
from meshinfer.weights.gguf_file import GgufFile, Place
from meshinfer.weights.gguf_layers import EMBEDDING, HEAD
from meshinfer.weights.gguf_ranges import (
    Mark,
    in_half,
    mark_of,
    write_range,
    write_range_as_it_is,
)
from meshinfer.weights.gguf_reader import read_ir
from meshinfer.weights.gguf_types import is_fine
from meshinfer.weights.int4 import Rounded, int8_asymmetric
from meshinfer.weights.recipe import Recipe, WeightFormat
from meshinfer.weights.repack import (
    Weight,
    bf16_rounded,
    compressed,
    find_weights,
    layer_weight,
    plain,
)

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Part:
    """`model` is for the assembly. `source` and `changed` are its layers alone, with the source's
    weights and with the new ones; None where the weights stay as the reader has them. All three
    read files that are removed with the part's folder."""

    model: Any
    source: Any
    changed: Any


@contextmanager
def part_of(
    file: GgufFile, span: LayerSpan, layers: int, recipe: Recipe, folder: Path
) -> Iterator[Part]:
    """Raises StageFailed, ShardCorrupt, DiskFull. `folder` is made, and removed at the end."""
    shutil.rmtree(folder, ignore_errors=True)
    with disk_errors(folder.parent):
        folder.mkdir(parents=True)
    try:
        yield _make(file, span, layers, recipe, folder)
    finally:
        gc.collect()  # unmap what is removed: Windows insists
        shutil.rmtree(folder, ignore_errors=True)


def _make(file: GgufFile, span: LayerSpan, layers: int, recipe: Recipe, folder: Path) -> Part:
    gguf = folder / "model.gguf"
    is_first, is_last = span.first == 0, span.end == layers
    inner = UnitRange(1, 1 + 2 * (span.end - span.first))
    outer = UnitRange(0 if is_first else 1, inner.end + 1 if is_last else inner.end)
    if recipe.format is WeightFormat.ORIGINAL:
        write_range_as_it_is(file, span, gguf, is_last)
        xml = read_ir(gguf)
        return Part(_whole_or_cut(xml, outer, is_first and is_last), None, None)
    names = write_range(file, span, gguf).names
    xml = read_ir(gguf)
    gguf.unlink()
    new = _repacked(file, names, recipe, xml, is_first or is_last)
    return Part(_whole_or_cut(new, outer, is_first and is_last), cut(xml, inner), cut(new, inner))


def _whole_or_cut(xml: Path, units: UnitRange, is_whole: bool) -> Any:
    return read_model(xml) if is_whole else cut(xml, units)


def _repacked(
    file: GgufFile, names: Mapping[Mark, str], recipe: Recipe, xml: Path, has_ends: bool
) -> Path:
    """The IR with every weight in its new form, saved beside the old one."""
    import openvino as ov

    model = read_model(xml)
    new = xml.with_name("new.xml")
    with openvino_errors("Repacking weights"):
        found = list(find_weights(model))
        tensors = [names.get(mark_of(weight.matrix)) for weight in found]
        if None in tensors or len(set(tensors)) != len(names):
            raise StageFailed(
                "OpenVINO's GGUF reader arranged the weights in an unexpected way.",
                "Install the version that meshinfer pins.",
            )
        for weight, name in zip(found, tensors, strict=True):
            assert name is not None
            _replace(weight, file.places[name], recipe, has_ends)
        model.validate_nodes_and_infer_types()
        with disk_errors(new.parent):
            ov.save_model(model, new, compress_to_fp16=False)
    return new


def _replace(weight: Weight, place: Place, recipe: Recipe, has_ends: bool) -> None:
    if place.info.name not in (EMBEDDING, HEAD):
        weight.replace(layer_weight(weight.matrix, recipe, is_fine(place.info.kind)))
    elif has_ends:  # else nothing but the layers leaves the range
        weight.replace(_end(place, recipe))


def _end(place: Place, recipe: Recipe) -> Any:
    """Embedding or head: INT8 with the layers in INT4 or INT8, else as they are."""
    if recipe.format in (WeightFormat.F16, WeightFormat.BF16):
        matrix = np.empty((place.rows, place.columns), np.float16)
        for first, values in place.blocks():
            matrix[first : first + len(values)] = in_half(values, place.info.name)
        return plain(matrix, recipe.format)
    codes = np.empty((place.rows, 1, place.columns), np.uint8)
    scale = np.empty((place.rows, 1, 1), np.float16)
    zero = np.empty((place.rows, 1, 1), np.uint8)
    for first, values in place.blocks():
        rows = slice(first, first + len(values))
        rounded = int8_asymmetric(values)
        assert rounded.zero is not None
        codes[rows], scale[rows], zero[rows] = rounded.codes, rounded.scale, rounded.zero
    return compressed(Rounded(codes, scale, zero, bits=8))


def end_values(values: Array, recipe: Recipe) -> Array:
    """Rows of embedding or head, f32 [rows, columns], as `_end` keeps them."""
    if recipe.format in (WeightFormat.F16, WeightFormat.BF16):
        half: Array = values.astype(np.float16).astype(np.float32)
        return bf16_rounded(half) if recipe.format is WeightFormat.BF16 else half
    return int8_asymmetric(values).values()
