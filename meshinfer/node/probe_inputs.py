"""What stages are calibrated on: a stored text, as it reaches each of them in the whole model.

Called by the weights process of a leader, which has the model on its disk. Memory follows a few
layers: they are loaded, run and let go one after another.
"""

from __future__ import annotations

import gc
import io
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshinfer.core.ids import Digest
from meshinfer.core.model import UnitRange
from meshinfer.core.step import Row, Step
from meshinfer.engine.calibration_input import POSITIONS
from meshinfer.engine.paged import PagedStage, StageOptions
from meshinfer.engine.tokenizer import GenAiTokenizer
from meshinfer.errors import MeshInferError
from meshinfer.mesh.atomic_file import replace_bytes
from meshinfer.weights.accuracy import stored_text
from meshinfer.weights.cut import cut
from meshinfer.weights.folder import ModelFolder

UNITS_AT_ONCE = 8
"""Four layers: loading fewer would cost more time than computing them."""

MOST_WEIGHTS = 12_000_000_000
"""Bytes of a model that is run through for this; a larger one would hold its first start up for
minutes. Its stages are judged on invented input, and their records say so."""

log = logging.getLogger(__name__)


def probe_inputs(
    model: ModelFolder,
    ranges: Sequence[UnitRange],
    folder: Path,
    most_weights: int = MOST_WEIGHTS,
) -> tuple[bytes, ...]:
    """For each stage its probe as a .npy: ids int32 [POSITIONS], or f32 [POSITIONS, width]. Kept in
    `folder`. Empty ones when the model is too large or cannot be run here: a calibration gets along
    without. Blocks for seconds."""
    if model.shape.weight_bytes(UnitRange(0, len(model.shape.units))) > most_weights:
        return (b"",) * len(ranges)
    digest = model.shape.digest
    missing = [units for units in ranges if not _file(folder, digest, units.first).is_file()]
    try:
        if missing:
            _compute(model, [units.first for units in ranges], folder)
        return tuple(_file(folder, digest, units.first).read_bytes() for units in ranges)
    except (MeshInferError, OSError) as error:
        log.warning("no probe to calibrate with: %s", error)
        return (b"",) * len(ranges)


def _compute(model: ModelFolder, firsts: Sequence[int], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    ids = GenAiTokenizer.load(model.path).encode_text(stored_text())[:POSITIONS]
    state: NDArray[Any] = np.array(ids, np.int32)
    digest = model.shape.digest
    _write(_file(folder, digest, 0), state)
    hidden: NDArray[Any] | None = None
    for units in _parts(firsts):
        hidden = _run(model, units, tuple(ids), hidden)
        if units.end in firsts:
            _write(_file(folder, digest, units.end), hidden)


def _parts(firsts: Sequence[int]) -> list[UnitRange]:
    """From the first unit to where the last stage begins, never across the beginning of one."""
    bounds = [0]
    for first in firsts[1:]:
        while first - bounds[-1] > UNITS_AT_ONCE:
            bounds.append(bounds[-1] + UNITS_AT_ONCE)
        bounds.append(first)
    return [UnitRange(a, b) for a, b in zip(bounds, bounds[1:], strict=False)]


def _run(
    model: ModelFolder, units: UnitRange, ids: tuple[int, ...], hidden: NDArray[Any] | None
) -> NDArray[Any]:
    options = StageOptions(cache_tokens=POSITIONS, dynamic_quantization_group_size=0)
    stage = PagedStage.load(cut(model.xml, units), options)
    try:
        step = Step(0, (Row(1, 0, len(ids), 0),), ids)
        return np.array(stage.forward(step, hidden), np.float32)
    finally:
        stage.close()
        gc.collect()


def _file(folder: Path, digest: Digest, first: int) -> Path:
    return folder / f"{digest[:24]}-{first}.npy"


def _write(path: Path, values: NDArray[Any]) -> None:
    buffer = io.BytesIO()
    np.save(buffer, values, allow_pickle=False)
    replace_bytes(path, buffer.getvalue())
