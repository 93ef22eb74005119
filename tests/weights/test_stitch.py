"""Parts joined again are the model they were cut from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
import pytest

from meshinfer.core.model import UnitRange
from meshinfer.errors import StageFailed
from meshinfer.weights.cut import cut
from meshinfer.weights.cut_points import find_units
from meshinfer.weights.stitch import stitch
from tests.weights.chain import logits, whole
from tests.weights.conftest import SaveTiny
from tests.weights.tiny import tiny_model
from tests.weights.tiny_shared import tiny_shared

pytestmark = pytest.mark.openvino

RANGES = (UnitRange(0, 3), UnitRange(3, 5), UnitRange(5, 8))


@pytest.mark.slow
@pytest.mark.parametrize("style", ["genai", "optimum"])
def test_the_joined_model_gives_the_same_logits(
    save_tiny: SaveTiny, tmp_path: Path, style: str
) -> None:
    xml = save_tiny(style=style)
    joined = tmp_path / "joined.xml"
    ov.save_model(stitch([cut(xml, units) for units in RANGES]), joined, compress_to_fp16=False)
    prompt = np.array([1, 93, 198, 178, 14, 60], np.int64)
    assert np.array_equal(logits(whole(joined), prompt, 3), logits(whole(xml), prompt, 3))


def test_units_inputs_and_options_are_those_of_the_whole(save_tiny: SaveTiny) -> None:
    xml = save_tiny()
    joined = stitch([cut(xml, units) for units in RANGES])
    before = [one.unit for one in find_units(tiny_model())]
    after = [one.unit for one in find_units(joined)]
    assert [(one.kind, one.layer) for one in after] == [(one.kind, one.layer) for one in before]
    assert [one.crossing_width for one in after] == [one.crossing_width for one in before]
    names = [name for port in joined.inputs for name in port.names]
    assert sorted(names) == ["attention_mask", "beam_idx", "input_ids", "position_ids"]
    assert float(joined.get_rt_info(["runtime_options", "ACTIVATIONS_SCALE_FACTOR"]).value) == 8.0
    assert len(joined.get_variables()) == 6


def test_constants_of_equal_names_get_names_of_their_own(save_tiny: SaveTiny) -> None:
    """Parts that are exported one by one call their weights the same."""
    parts = [cut(save_tiny(), units) for units in RANGES]
    for part in parts:
        for number, node in enumerate(part.get_ordered_ops()):
            if node.get_type_name() == "Constant":
                node.set_friendly_name(f"weight_{number}")
    names = [node.get_friendly_name() for node in stitch(parts).get_ops()]
    assert len(set(names)) == len(names)


def test_parts_that_share_a_state_are_refused(tmp_path: Path) -> None:
    xml = tmp_path / "shared.xml"
    ov.save_model(tiny_shared(layers=4, shared=2, front=0), xml, compress_to_fp16=False)
    parts = [cut(xml, UnitRange(0, 5)), cut(xml, UnitRange(5, 10))]
    with pytest.raises(StageFailed, match="has a state of the parts before"):
        stitch(parts)
