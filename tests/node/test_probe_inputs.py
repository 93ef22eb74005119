"""What a stage is calibrated on is what reaches it in the whole model, part by part or at once."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from meshinfer.core.model import UnitRange
from meshinfer.core.step import Row, Step
from meshinfer.engine.calibration_input import POSITIONS
from meshinfer.engine.paged import PagedStage, StageOptions
from meshinfer.node import probe_inputs
from meshinfer.weights.cut import cut
from meshinfer.weights.folder import open_folder

RANGES = (UnitRange(0, 13), UnitRange(13, 62))


@pytest.mark.openvino
@pytest.mark.slow
def test_the_activations_of_a_text(smollm2: Path, tmp_path: Path) -> None:
    folder = open_folder(smollm2)
    ids, hidden = (
        np.load(io.BytesIO(one), allow_pickle=False)
        for one in probe_inputs.probe_inputs(folder, RANGES, tmp_path)
    )
    assert ids.shape == (POSITIONS,)
    options = StageOptions(cache_tokens=POSITIONS, dynamic_quantization_group_size=0)
    stage = PagedStage.load(cut(folder.xml, RANGES[0]), options)
    tokens = tuple(ids.tolist())
    whole = stage.forward(Step(0, (Row(1, 0, POSITIONS, 0),), tokens), None)
    assert np.abs(whole - hidden).max() == 0.0
    stage.close()
    kept = sorted(tmp_path.iterdir())
    assert len(kept) == 2
    kept[1].write_bytes(b"kept")
    assert b"kept" in probe_inputs.probe_inputs(folder, RANGES, tmp_path)


@pytest.mark.slow
def test_a_model_that_is_too_large_goes_without(smollm2: Path, tmp_path: Path) -> None:
    found = probe_inputs.probe_inputs(open_folder(smollm2), RANGES, tmp_path, most_weights=1000)
    assert found == (b"", b"")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("firsts", "parts"),
    [
        ([0], []),
        ([0, 3], [(0, 3)]),
        ([0, 8, 9], [(0, 8), (8, 9)]),
        ([0, 20, 21], [(0, 8), (8, 16), (16, 20), (20, 21)]),
    ],
)
def test_parts_end_where_stages_begin(firsts: list[int], parts: list[tuple[int, int]]) -> None:
    assert [(one.first, one.end) for one in probe_inputs._parts(firsts)] == parts
