"""What a stage is judged on: the probe that its leader sent, else an invented input.

The probe of a first stage holds token ids of a text, that of a later one the activations which
reached it when the whole model read that text. Values are the same for every precision.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshinfer.engine.selftest import fixed_input, widened
from meshinfer.engine.stage import StageShape

log = logging.getLogger(__name__)

PROBE_FILE = "probe.npy"

POSITIONS = 128
"""Tokens that are compared: a second or two of decoding at 1.5B on one core."""

_LARGEST_PROBE = 64 << 20
"""Bytes: 128 positions of a hidden state of 8192 are 4 MiB in f32."""


class InputKind(StrEnum):
    TEXT = "text"  # token ids of a stored text
    ACTIVATIONS = "activations"  # of a stored text, as they reach the stage
    INVENTED = "invented"  # ids in no order, or normal noise


@dataclass(frozen=True, slots=True)
class CalibrationInput:
    """`values` as `Stage.forward` takes them: ids [positions], or activations [positions, width] in
    the stage's precision."""

    kind: InputKind
    values: NDArray[Any]


def calibration_input(folder: Path | None, shape: StageShape) -> CalibrationInput:
    """For a stage whose probe lies in `folder`. Blocks. A probe that does not fit the stage is left
    alone, with a warning."""
    probe = None if folder is None else folder / PROBE_FILE
    if probe is not None and probe.is_file():
        try:
            values = _fitting(_read(probe), shape)
        except (OSError, ValueError, EOFError) as error:
            log.warning("%s is of no use to calibrate with: %s", PROBE_FILE, error)
        else:
            kind = InputKind.TEXT if shape.first else InputKind.ACTIVATIONS
            return CalibrationInput(kind, values)
    return CalibrationInput(InputKind.INVENTED, fixed_input(shape, POSITIONS))


def _read(probe: Path) -> NDArray[Any]:
    if probe.stat().st_size > _LARGEST_PROBE:
        raise ValueError("it is too large")
    values: NDArray[Any] = np.load(probe, allow_pickle=False)
    if not isinstance(values, np.ndarray) or values.ndim == 0:
        raise ValueError("it holds no row of values")
    return values[:POSITIONS]


def _fitting(values: NDArray[Any], shape: StageShape) -> NDArray[Any]:
    """Raises ValueError: another stage's, or too short."""
    if shape.first:
        if values.ndim != 1 or values.dtype.kind not in "iu" or len(values) < POSITIONS:
            raise ValueError("token ids were due")
        if values.min() < 0 or (shape.vocabulary_size and values.max() >= shape.vocabulary_size):
            raise ValueError("its ids are not in the vocabulary")
        return values.astype(np.int64)
    if values.shape != (POSITIONS, shape.input_width) or values.dtype != np.float32:
        raise ValueError(f"f32 [{POSITIONS}, {shape.input_width}] was due")
    if not np.isfinite(values).all():
        raise ValueError("it has numbers that are not finite")
    bits = _rounded(values)
    if shape.precision == "bf16":
        return bits
    return widened(bits)


def _rounded(values: NDArray[Any]) -> NDArray[Any]:
    """f32 to the nearest bf16, ties to even, as bits: both precisions get the same numbers."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
