from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from meshinfer.errors import ShardCorrupt, StageFailed
from meshinfer.weights.export.compression import compress
from meshinfer.weights.export.tensors import CheckpointTensors
from meshinfer.weights.export.vocabulary import put_in, stand_in_rows
from meshinfer.weights.recipe import Recipe, WeightFormat
from tests.weights.safetensors_writer import table_bytes

ROWS, COLUMNS = 9001, 24  # more rows than are compressed at once, and a rest
STAND_IN = 37
INT8 = Recipe(WeightFormat.INT8)
TYPES = {"F16": np.float16, "F32": np.float32, "BF16": np.uint16}


def matrix(dtype: str, seed: int = 0) -> Any:
    """Random rows of very different sizes; one of zeros."""
    values = np.random.default_rng(seed).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    values *= np.logspace(-3, 2, ROWS, dtype=np.float32)[:, None]
    values[5] = 0.0
    if dtype == "BF16":
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(TYPES[dtype])


def write(folder: Path, dtype: str, **tensors: Any) -> CheckpointTensors:
    tensors = {"model.embed_tokens.weight": matrix(dtype), **tensors}
    tensors["model.layers.0.w"] = np.zeros((2, 2), dtype=TYPES[dtype])
    table, data = {}, b""
    for name, values in tensors.items():
        place = [len(data), len(data) + values.nbytes]
        table[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": place}
        data += values.tobytes()
    (folder / "model.safetensors").write_bytes(table_bytes(table, data))
    return CheckpointTensors.open(folder, 1)


def lookup_and_head(values: Any, kind: Any, head: Any = None, bias: Any = None) -> Any:
    """ids -> rows -> logits, as an exporter makes it: constants in their type, then f32."""

    def constant(data: Any) -> Any:
        if kind == ov.Type.f32:
            return ops.constant(data)
        tensor = ov.Tensor(kind, data.shape)
        tensor.data.view(data.dtype)[:] = data
        return ops.convert(ov.op.Constant(tensor), "f32")

    table = constant(values)
    ids = ops.parameter([-1], np.int64, name="input_ids")
    rows = ops.gather(table, ids, ops.constant(0, dtype=np.int32))
    result = ops.matmul(rows, table if head is None else constant(head), False, True)
    if bias is not None:
        result = ops.add(result, constant(bias))
    return ov.Model([ops.result(result)], [ids], "ends")


def saved(model: Any, path: Path) -> bytes:
    ov.save_model(model, path, compress_to_fp16=False)
    return path.with_suffix(".bin").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["F16", "BF16", "F32"])
@pytest.mark.parametrize("recipe", [INT8, Recipe(WeightFormat.ORIGINAL)], ids=str)
def test_a_tied_matrix_becomes_what_nncf_makes_of_the_whole(
    tmp_path: Path, dtype: str, recipe: Recipe
) -> None:
    tensors = write(tmp_path, dtype)
    kind = {"F16": ov.Type.f16, "BF16": ov.Type.bf16, "F32": ov.Type.f32}[dtype]
    small = compress(lookup_and_head(matrix(dtype)[:STAND_IN], kind), recipe)
    put_in(small, tensors, recipe, STAND_IN)
    whole = compress(lookup_and_head(matrix(dtype), kind), recipe)
    assert saved(small, tmp_path / "small.xml") == saved(whole, tmp_path / "whole.xml")


@pytest.mark.slow
def test_a_head_of_its_own_and_its_bias_are_put_in_their_places(tmp_path: Path) -> None:
    head, bias = matrix("F16", 1), matrix("F16", 2)[:, 0].copy()
    extra = {"lm_head.weight": head, "lm_head.bias": bias}
    tensors = write(tmp_path, "F16", **extra)
    values = matrix("F16")
    small = lookup_and_head(values[:STAND_IN], ov.Type.f16, head[:STAND_IN], bias[:STAND_IN])
    small = compress(small, INT8)
    put_in(small, tensors, INT8, STAND_IN)
    whole = compress(lookup_and_head(values, ov.Type.f16, head, bias), INT8)
    assert saved(small, tmp_path / "small.xml") == saved(whole, tmp_path / "whole.xml")


@pytest.mark.parametrize(("wanted", "kind"), [("f16", ov.Type.f16), ("bf16", ov.Type.bf16)])
def test_another_type_is_rounded_as_torch_rounds(tmp_path: Path, wanted: str, kind: Any) -> None:
    torch = pytest.importorskip("torch")
    tensors = write(tmp_path, "F32")
    stand_in = np.zeros((STAND_IN, COLUMNS), dtype=np.float16 if wanted == "f16" else np.uint16)
    small = lookup_and_head(stand_in, kind)
    put_in(small, tensors, Recipe(WeightFormat(wanted)), STAND_IN)
    dtype = torch.float16 if wanted == "f16" else torch.bfloat16
    expected = torch.from_numpy(matrix("F32")).to(dtype).view(torch.uint8).numpy().tobytes()
    assert saved(small, tmp_path / "small.xml")[: len(expected)] == expected


def test_values_beyond_f16_are_refused_by_name(tmp_path: Path) -> None:
    tensors = write(tmp_path, "F32", **{"lm_head.weight": matrix("F32") * 1e6})
    stand_in = np.zeros((STAND_IN, COLUMNS), dtype=np.float16)
    small = lookup_and_head(stand_in, ov.Type.f16, stand_in + np.float16(1))
    with pytest.raises(StageFailed, match="lm_head.weight holds values beyond"):
        put_in(small, tensors, Recipe(WeightFormat.F16), STAND_IN)


def test_a_bias_that_the_checkpoint_lacks_is_missed(tmp_path: Path) -> None:
    tensors = write(tmp_path, "F16")
    stand_in = matrix("F16")[:STAND_IN]
    small = lookup_and_head(stand_in, ov.Type.f16, None, stand_in[:, 0].copy())
    with pytest.raises(ShardCorrupt, match="bias"):
        put_in(small, tensors, Recipe(WeightFormat.ORIGINAL), STAND_IN)


def test_the_rows_of_stand_ins_are_no_size_of_the_model(tmp_path: Path) -> None:
    assert stand_in_rows(write(tmp_path, "F16")) == 37
    odd = {"model.layers.0.x": np.zeros((37 * 4, 2), dtype=np.float16)}
    assert stand_in_rows(write(tmp_path, "F16", **odd)) == 41
