"""Split == whole, and a split that differs is seen."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from meshinfer.core.model import UnitRange
from meshinfer.errors import UsageError
from meshinfer.node.verify import Check, VerifyReport, _difference, verify
from tests.weights.tiny import tiny_model
from tests.weights.tiny_shared import tiny_shared


def test_the_largest_difference_stands_last() -> None:
    halves = (UnitRange(0, 3), UnitRange(3, 8))
    checks = (Check(halves, "f32", 0.0), Check(halves, "bf16", 0.5))
    report = VerifyReport("tiny", checks, ("no f16",)).to_json()
    assert list(report)[-1] == "difference"
    assert report["difference"] == 0.5
    assert json.loads(json.dumps(report))["checks"][1] == {
        "stages": 2,
        "precision": "bf16",
        "cut": "[0,3) [3,8)",
        "difference": 0.5,
    }


@pytest.mark.parametrize(
    ("actual", "expected", "difference"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 2.5], [1.0, 2.0], 0.5),
        ([1.0, np.nan], [1.0, 2.0], np.inf),
        ([0.0, -0.0], [0.0, 0.0], np.inf),
        ([1.0], [1.0, 2.0], np.inf),
    ],
)
def test_only_equal_bits_are_exact(
    actual: list[float], expected: list[float], difference: float
) -> None:
    assert _difference(np.float32([actual]), np.float32([expected])) == difference


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import openvino as ov

    folder = tmp_path_factory.mktemp("tiny")
    model = tiny_model(layers=3)
    ov.save_model(model, folder / "openvino_model.xml", compress_to_fp16=False)
    return folder


@pytest.mark.openvino
@pytest.mark.slow
def test_a_split_model_equals_the_whole_bit_for_bit(tiny_folder: Path) -> None:
    told: list[float] = []
    report = verify(
        tiny_folder, (2, 3), steps=12, threads=1, progress=lambda share, doing: told.append(share)
    )
    assert report.difference == 0.0
    precisions = {check.precision for check in report.checks}
    assert "f32" in precisions
    assert ("bf16" in precisions) != any("bf16" in why for why in report.not_run)
    assert len(report.checks) == 4 * len(precisions)
    assert told == sorted(told)
    assert told[-1] == 1.0


@pytest.mark.openvino
@pytest.mark.slow
def test_one_unit_a_stage_is_exact_too(tiny_folder: Path) -> None:
    every = tuple(UnitRange(unit, unit + 1) for unit in range(8))
    report = verify(tiny_folder / "openvino_model.xml", steps=6, threads=1, cuts=[every])
    assert [check.stages for check in report.checks] == [8] * len(report.checks)
    assert report.difference == 0.0


@pytest.mark.openvino
@pytest.mark.slow
def test_a_split_that_leaves_a_layer_out_is_seen(tiny_folder: Path) -> None:
    gap = (UnitRange(0, 3), UnitRange(5, 8))
    report = verify(tiny_folder, precisions=("f32",), steps=4, threads=1, cuts=[gap])
    assert report.difference > 0.01


@pytest.mark.openvino
def test_nothing_to_compare_is_an_error(tiny_folder: Path) -> None:
    with pytest.raises(UsageError, match="nothing to compare"):
        verify(tiny_folder, precisions=("f64",), cuts=[])


@pytest.mark.openvino
@pytest.mark.slow
def test_given_borders_replace_even_cuts(tiny_folder: Path) -> None:
    report = verify(
        tiny_folder, precisions=("f32",), steps=2, threads=1, borders=[(0, 2, 5, 8), (7,)]
    )
    assert [[one.first for one in check.cut] for check in report.checks] == [[0, 2, 5], [0, 7]]
    assert report.difference == 0.0


@pytest.mark.openvino
@pytest.mark.slow
def test_what_cannot_be_run_is_said(tiny_folder: Path) -> None:
    """Five stages need four borders inside the layers of this model: it has three."""
    report = verify(tiny_folder, (2, 5), precisions=("f32", "f64"), steps=1, threads=1)
    assert [check.stages for check in report.checks] == [2, 2, 5]
    assert any("5 stages inside its layers" in why for why in report.not_run)
    assert any("f64" in why for why in report.not_run)
    assert report.to_json()["not_run"] == list(report.not_run)


@pytest.mark.openvino
@pytest.mark.slow
def test_cuts_that_a_model_refuses_are_noted(tmp_path: Path) -> None:
    import openvino as ov

    model = tiny_shared(layers=3, shared=0, front=200)
    ov.save_model(model, tmp_path / "openvino_model.xml", compress_to_fp16=False)
    report = verify(tmp_path, (2,), precisions=("f32",), steps=1, threads=1)
    assert report.difference == 0.0
    assert any("numbers a token would cross" in note for note in report.notes)
    assert report.to_json()["notes"] == list(report.notes)
    assert list(report.to_json())[-1] == "difference"
