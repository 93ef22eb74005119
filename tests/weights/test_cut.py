from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from meshinfer.core.model import UnitRange
from meshinfer.errors import StageFailed
from meshinfer.node.verify import verify
from meshinfer.weights.cut import cut, read_model
from meshinfer.weights.cut_points import find_units
from tests.weights.chain import PLAIN, logits, parts, whole
from tests.weights.conftest import SaveTiny
from tests.weights.tiny import tiny_model

PROMPT = np.array([1, 93, 198, 178, 14, 60, 75, 82, 49, 47, 2], np.int64)
ALL = UnitRange(0, 8)

pytestmark = pytest.mark.openvino


@pytest.mark.slow
@pytest.mark.parametrize("style", ["genai", "optimum"])
@pytest.mark.parametrize("tied", [True, False])
def test_stages_give_the_logits_of_the_whole_wherever_it_is_cut(
    save_tiny: SaveTiny, style: str, tied: bool
) -> None:
    xml = save_tiny(style=style, tied=tied)
    expected = logits(whole(xml), PROMPT, 4)
    for border in range(1, 8):
        assert np.array_equal(logits(parts(xml, [border]), PROMPT, 4), expected), border


@pytest.mark.slow
@pytest.mark.parametrize("style", ["genai", "optimum"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_engine_that_ships_computes_every_cut_exactly(
    save_tiny: SaveTiny, style: str, tied: bool
) -> None:
    """Through engine.paged, two sequences at once: every border, the embedding and the head by
    themselves, and every unit by itself; in bf16 too where this CPU computes in it."""
    singles = tuple(UnitRange(unit, unit + 1) for unit in range(8))
    cuts = [(UnitRange(0, border), UnitRange(border, 8)) for border in range(1, 8)]
    report = verify(
        save_tiny(style=style, tied=tied), steps=4, sequences=2, cuts=[*cuts, singles], threads=1
    )
    precisions = {check.precision for check in report.checks}
    assert "f32" in precisions
    assert len(precisions) + len(report.not_run) == 2
    assert [check.difference for check in report.checks] == [0.0] * 8 * len(precisions)


@pytest.mark.slow
@pytest.mark.parametrize("style", ["genai", "optimum"])
def test_every_unit_can_be_a_stage_of_its_own(save_tiny: SaveTiny, style: str) -> None:
    xml = save_tiny(style=style)
    expected = logits(whole(xml), PROMPT, 4)
    assert np.array_equal(logits(parts(xml, range(1, 8)), PROMPT, 4), expected)


@pytest.mark.slow
@pytest.mark.parametrize("style", ["genai", "optimum"])
@pytest.mark.parametrize("border", [2, 3, 4])
def test_the_stateful_form_knows_batch_length_and_past_of_what_was_cut_off(
    save_tiny: SaveTiny, style: str, border: int
) -> None:
    """Without paging, masks are really computed from shapes: two sequences, padded, then a step."""
    xml = save_tiny(style=style)
    one = [_stateful(read_model(xml))]
    two = [_stateful(cut(xml, UnitRange(0, border))), _stateful(cut(xml, UnitRange(border, 8)))]
    ids = np.array([[5, 6, 7, 8], [0, 0, 9, 10]], np.int64)
    mask = np.array([[1, 1, 1, 1], [0, 0, 1, 1]], np.int64)
    for tokens, seen in ((ids, mask), (ids[:, :1], np.c_[mask, [1, 1]])):
        assert np.array_equal(_run(two, tokens, seen), _run(one, tokens, seen))


def _stateful(model: Any) -> Any:
    return ov.Core().compile_model(model, "CPU", PLAIN).create_infer_request()


def _run(requests: list[Any], ids: np.ndarray[Any, Any], mask: np.ndarray[Any, Any]) -> Any:
    value: Any = ids
    for request in requests:
        feed = {
            "input_ids": value,
            "inputs_embeds": value,
            "attention_mask": mask,
            "position_ids": np.maximum(mask.cumsum(1) - 1, 0)[:, -ids.shape[1] :],
            "beam_idx": np.arange(2, dtype=np.int32),
        }
        names = {name for port in request.model_inputs for name in port.names}
        request.infer({name: feed[name] for name in names})
        value = request.get_output_tensor(0).data.copy()
    return value


def test_ports_are_named_for_the_engine_and_the_paging_pass(save_tiny: SaveTiny) -> None:
    first, last = cut(save_tiny(), UnitRange(0, 4)), cut(save_tiny(), UnitRange(4, 8))
    assert first.output().names == {"hidden_states"}
    assert "inputs_embeds" not in {name for port in first.inputs for name in port.names}
    entry = last.input("inputs_embeds")
    assert entry.get_node().get_friendly_name() == "inputs_embeds"
    assert str(entry.get_partial_shape()) == "[?,?,64]"
    assert entry.get_element_type() == ov.Type.f32
    assert last.output().names == {"logits"}


def test_a_stage_keeps_its_own_states_and_only_the_inputs_it_reads(save_tiny: SaveTiny) -> None:
    xml = save_tiny()
    wanted = {unit: set(found.variables) for unit, found in enumerate(find_units(read_model(xml)))}
    middle = cut(xml, UnitRange(3, 5))
    assert {str(sink.get_variable_id()) for sink in middle.get_sinks()} == wanted[3]
    for alone in (UnitRange(0, 1), UnitRange(2, 3), UnitRange(7, 8)):
        stage = cut(xml, alone)
        assert len(stage.inputs) == 1
        assert not stage.get_variables()


@pytest.mark.parametrize("tied", [True, False])
def test_a_head_alone_carries_its_matrix(save_tiny: SaveTiny, tied: bool) -> None:
    head = cut(save_tiny(tied=tied), UnitRange(7, 8))
    largest = max(
        int(np.prod(node.get_output_shape(0)))
        for node in head.get_ops()
        if node.get_type_name() == "Constant"
    )
    assert largest == 256 * 64


def test_runtime_options_survive_the_cut_and_the_disk(save_tiny: SaveTiny, tmp_path: Path) -> None:
    """ACTIVATIONS_SCALE_FACTOR keeps f16 devices from overflowing."""
    path = ["runtime_options", "ACTIVATIONS_SCALE_FACTOR"]
    stage = cut(save_tiny(), UnitRange(2, 8))
    ov.save_model(stage, tmp_path / "stage.xml", compress_to_fp16=False)
    for model in (stage, read_model(tmp_path / "stage.xml")):
        assert float(model.get_rt_info(path).value) == 8.0


def test_equal_cuts_are_equal_files(save_tiny: SaveTiny, tmp_path: Path) -> None:
    """Stages are named by their digest: it must not hold a counter of the process."""
    for name in ("one", "two"):
        stage = cut(save_tiny(), UnitRange(4, 8))
        ov.save_model(stage, tmp_path / f"{name}.xml", compress_to_fp16=False)
    for suffix in ("xml", "bin"):
        one, two = (tmp_path / f"{name}.{suffix}" for name in ("one", "two"))
        assert one.read_bytes() == two.read_bytes()


def test_units_that_the_model_has_not_are_refused(save_tiny: SaveTiny) -> None:
    with pytest.raises(StageFailed, match=r"has 8 units; \[4,9\) goes beyond"):
        cut(save_tiny(), UnitRange(4, 9))


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.xml").write_text("<html>", encoding="utf-8")
    with pytest.raises(StageFailed, match=r"Reading x\.xml failed"):
        cut(tmp_path / "x.xml", ALL)


@pytest.mark.slow
@pytest.mark.parametrize("style", ["genai", "optimum"])
def test_the_mask_asks_the_first_cache_of_a_stage_whatever_its_heads(
    save_tiny: SaveTiny, style: str
) -> None:
    """The cache of layer 2 has the axes that the mask asked in layer 0; that of layer 1 has not,
    but layer 2 is computed with the mask."""
    xml = save_tiny(style=style, uneven=True)
    expected = logits(whole(xml), PROMPT, 3)
    for borders in ([3], [2, 6], [3, 5]):
        assert np.array_equal(logits(parts(xml, borders), PROMPT, 3), expected), borders


def test_a_state_that_no_attention_reads_is_refused_by_name(tmp_path: Path) -> None:
    """Short convolutions keep their last inputs: no rewind can undo what went in."""
    model = tiny_model(layers=2)
    head = model.get_results()[0].input(0).get_source_output().get_node()
    hidden = head.input(0).get_source_output()
    start = ops.constant(np.zeros((1, 3, 64), np.float32))
    shape = ov.PartialShape([-1, 3, 64])
    state = ops.read_value(start, "last_inputs", np.float32, shape)
    joined = ops.concat([state, hidden], 1)
    model.add_sinks([ops.assign(joined, "last_inputs")])
    mean = ops.reduce_mean(joined, ops.constant(np.array([1], np.int64)), True)
    head.input(0).replace_source_output(ops.add(hidden, mean).output(0))
    xml = tmp_path / "convolution.xml"
    ov.save_model(model, xml, compress_to_fp16=False)
    with pytest.raises(StageFailed, match="'last_inputs' that no attention reads"):
        cut(xml, UnitRange(0, 3))


def test_names_of_a_stage_are_unique(tmp_path: Path) -> None:
    """The store finds weights by the names of their constants."""
    model = tiny_model(layers=2)
    for node in model.get_ordered_ops():
        if node.get_type_name() == "Constant":
            node.set_friendly_name("weight")
    xml = tmp_path / "model.xml"
    ov.save_model(model, xml, compress_to_fp16=False)
    for stage in (cut(xml, UnitRange(0, 3)), cut(xml, UnitRange(3, 6))):
        names = [node.get_friendly_name() for node in stage.get_ops()]
        assert len(set(names)) == len(names)
        assert {"input_ids", "inputs_embeds"} & {
            one.get_friendly_name() for one in stage.get_parameters()
        }
