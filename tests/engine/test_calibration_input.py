"""A probe beside the stage is used when it fits, and only then."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from meshinfer.engine.calibration_input import (
    POSITIONS,
    PROBE_FILE,
    InputKind,
    calibration_input,
)
from meshinfer.engine.selftest import fixed_input
from meshinfer.engine.stage import StageShape

FIRST = StageShape(True, False, "f32", 0, 8, 300, 512, 32)
LATER = StageShape(False, True, "f32", 8, 0, 300, 512, 32)
IDS = np.arange(200, dtype=np.int32)
ACTIVATIONS = np.linspace(-3, 3, 200 * 8, dtype=np.float32).reshape(200, 8)


def test_token_ids_of_a_text(tmp_path: Path) -> None:
    np.save(tmp_path / PROBE_FILE, IDS)
    found = calibration_input(tmp_path, FIRST)
    assert found.kind is InputKind.TEXT
    np.testing.assert_array_equal(found.values, IDS[:POSITIONS])
    assert found.values.dtype == np.int64


def test_activations_are_the_same_numbers_in_both_precisions(tmp_path: Path) -> None:
    np.save(tmp_path / PROBE_FILE, ACTIVATIONS)
    plain = calibration_input(tmp_path, LATER)
    halved = calibration_input(tmp_path, replace(LATER, precision="bf16"))
    assert plain.kind is halved.kind is InputKind.ACTIVATIONS
    assert (plain.values.dtype, halved.values.dtype) == (np.float32, np.uint16)
    widened = (halved.values.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(plain.values, widened)
    np.testing.assert_allclose(plain.values, ACTIVATIONS[:POSITIONS], rtol=2**-8)


@pytest.mark.parametrize("shape", [FIRST, LATER])
def test_without_a_probe_the_input_is_invented(tmp_path: Path, shape: StageShape) -> None:
    for folder in (None, tmp_path):
        found = calibration_input(folder, shape)
        assert found.kind is InputKind.INVENTED
        np.testing.assert_array_equal(found.values, fixed_input(shape, POSITIONS))


@pytest.mark.parametrize(
    ("shape", "probe"),
    [
        (FIRST, IDS[: POSITIONS - 1]),
        (FIRST, IDS + 200),
        (FIRST, -IDS),
        (FIRST, ACTIVATIONS),
        (FIRST, IDS.astype(np.float32)),
        (LATER, IDS),
        (LATER, ACTIVATIONS[:, :7]),
        (LATER, ACTIVATIONS[:5]),
        (LATER, ACTIVATIONS.astype(np.float64)),
        (LATER, np.full_like(ACTIVATIONS, np.nan)),
        (FIRST, np.int64(3)),
    ],
)
def test_a_probe_that_does_not_fit_is_left_alone(
    tmp_path: Path, shape: StageShape, probe: np.ndarray
) -> None:
    np.save(tmp_path / PROBE_FILE, probe)
    assert calibration_input(tmp_path, shape).kind is InputKind.INVENTED


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"\x80\x04K\x01."])
def test_a_file_that_is_no_array_is_left_alone(tmp_path: Path, content: bytes) -> None:
    (tmp_path / PROBE_FILE).write_bytes(content)
    assert calibration_input(tmp_path, FIRST).kind is InputKind.INVENTED
