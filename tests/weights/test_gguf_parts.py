"""Ranges joined against the whole in one piece: bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray

from meshinfer.errors import StageFailed
from meshinfer.weights.assembly import LayerSpan
from meshinfer.weights.gguf import convert
from meshinfer.weights.gguf_file import open_gguf
from meshinfer.weights.gguf_parts import end_values, part_of
from meshinfer.weights.gguf_reader import read_ir
from meshinfer.weights.int4 import int8_asymmetric
from meshinfer.weights.recipe import Recipe, WeightFormat
from tests.weights.gguf_models import F32, Q4_0, Q5_0, Q8_0, make_gguf

pytestmark = [pytest.mark.openvino, pytest.mark.slow]

TOKENS = np.array([[5, 17, 3, 60, 22, 9, 41]], np.int64)
EXACT = {
    "INFERENCE_PRECISION_HINT": "f32",
    "KV_CACHE_PRECISION": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
}


def _logits(folder: Path) -> NDArray[Any]:
    compiled = ov.Core().compile_model(str(folder / "openvino_model.xml"), "CPU", EXACT)
    feed = {
        "input_ids": TOKENS,
        "attention_mask": np.ones_like(TOKENS),
        "position_ids": np.arange(TOKENS.shape[1])[None],
        "beam_idx": np.zeros(1, np.int32),
    }
    result: NDArray[Any] = compiled(feed)[0]
    return result


def _large_constants(folder: Path) -> set[bytes]:
    model = ov.Core().read_model(folder / "openvino_model.xml")
    return {
        np.ascontiguousarray(node.data).tobytes()
        for node in model.get_ops()
        if node.get_type_name() == "Constant" and node.get_byte_size() > 256
    }


def _convert(gguf: Path, folder: Path, form: WeightFormat, range_bytes: int) -> Path:
    folder.mkdir()
    convert(gguf, folder, Recipe(form, 32), range_bytes=range_bytes)
    return folder


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_as_it_is_ranges_equal_what_the_reader_makes_of_the_whole(
    tmp_path: Path, architecture: str, tied: bool
) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    make_gguf(whole / "m.gguf", architecture, tied=tied, kinds={"attn_v": Q8_0, "token": Q8_0})
    read_ir(whole / "m.gguf")
    parts = _convert(whole / "m.gguf", tmp_path / "parts", WeightFormat.ORIGINAL, 1)
    assert np.array_equal(_logits(parts), _logits(whole))
    assert _large_constants(parts) == _large_constants(whole)


@pytest.mark.parametrize("form", [WeightFormat.INT4_ASYM, WeightFormat.BF16])
def test_repacked_ranges_equal_the_whole_repacked_at_once(
    tmp_path: Path, form: WeightFormat
) -> None:
    kinds = {"ffn_down": Q5_0, "attn_v": Q8_0, "attn_q": F32}
    make_gguf(tmp_path / "m.gguf", layers=2, kinds=kinds)
    parts = _convert(tmp_path / "m.gguf", tmp_path / "parts", form, 1)
    whole = _convert(tmp_path / "m.gguf", tmp_path / "whole", form, 1 << 30)
    assert np.array_equal(_logits(parts), _logits(whole))
    assert _large_constants(parts) == _large_constants(whole)


def test_int8_stays_near_f16_and_f16_near_the_reader(tmp_path: Path) -> None:
    """Of Q4_0 the reader's zero points are whole numbers, so it reads it rightly."""
    (tmp_path / "reader").mkdir()
    make_gguf(tmp_path / "reader" / "m.gguf", "qwen2")
    read_ir(tmp_path / "reader" / "m.gguf")
    read = _logits(tmp_path / "reader")
    for form, tolerance in ((WeightFormat.F16, 2e-3), (WeightFormat.INT8, 3e-2)):
        made = _convert(tmp_path / "reader" / "m.gguf", tmp_path / form, form, 1 << 30)
        assert np.abs(_logits(made) - read).max() < tolerance * np.abs(read).max()


def test_sensitive_tensors_keep_eight_bits_and_the_others_four(tmp_path: Path) -> None:
    make_gguf(tmp_path / "m.gguf", layers=1, kinds={"ffn_down": Q8_0, "ffn_up": Q5_0})
    made = _convert(tmp_path / "m.gguf", tmp_path / "made", WeightFormat.INT4, 1 << 30)
    model = ov.Core().read_model(made / "openvino_model.xml")
    found = sorted(
        (node.get_output_element_type(0).get_type_name(), tuple(node.get_output_shape(0)))
        for node in model.get_ops()
        if node.get_type_name() == "Constant" and node.get_byte_size() > 500
    )
    types = [kind for kind, shape in found if kind in ("i4", "u8") and len(shape) > 1]
    assert types == ["i4"] * 6 + ["u8"] * 2  # ffn_down, and the embedding that is the head too


def test_the_range_is_removed_also_after_an_error(tmp_path: Path) -> None:
    make_gguf(tmp_path / "m.gguf", kinds={"ffn_down": Q4_0})
    file = open_gguf(tmp_path / "m.gguf")

    def fail() -> None:
        with part_of(file, LayerSpan(0, 2), 3, Recipe(), tmp_path / "range") as part:
            assert [port.any_name for port in part.source.outputs] == ["hidden_states"]
            assert (tmp_path / "range").is_dir()
            raise StageFailed("no room")

    with pytest.raises(StageFailed, match="no room"):
        fail()
    assert not (tmp_path / "range").exists()


def test_rows_of_a_head_are_compared_as_they_are_kept() -> None:
    values = np.random.default_rng(1).standard_normal((5, 64)).astype(np.float32)
    assert np.array_equal(end_values(values, Recipe()), int8_asymmetric(values).values())
    half = end_values(values, Recipe(WeightFormat.F16))
    assert np.array_equal(half, values.astype(np.float16))
