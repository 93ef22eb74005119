"""Weights of a graph are put into another form: the graph part of the repack.

An ov.Model whose weights are f16 Constants enters; each leaves as the recipe wants it, in exactly
the operations that NNCF 3 writes, because the plugins of CPU and GPU look for those:

    int4       Constant i4 [out, groups, group] -> Convert f16 -> Multiply scale -> Reshape
    int4-asym  Constant u4 -> Convert f16 -> Subtract u4 zero point -> Multiply scale -> Reshape
    int8       Constant u8 [out, in] -> Convert f16 -> Subtract u8 zero point -> Multiply scale
    f16, bf16  Constant
    all        -> Convert f32 -> MatMul (transposed) or Gather

Called by the conversion of a GGUF.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshinfer.weights.int4 import (
    Rounded,
    group_size,
    int4_asymmetric,
    int4_symmetric,
    int8_asymmetric,
)
from meshinfer.weights.recipe import Recipe, WeightFormat

_INT4 = (WeightFormat.INT4, WeightFormat.INT4_ASYM)


@dataclass(frozen=True, slots=True)
class Weight:
    """A matrix f16 [rows, columns] in a graph, and the f32 output that its readers have."""

    matrix: NDArray[Any]
    output: Any

    def replace(self, new: Any) -> None:
        """Readers get `new`, an f32 output [rows, columns]; rows may differ."""
        for reader in list(self.output.get_target_inputs()):
            reader.replace_source_output(new)


def find_weights(model: Any) -> Iterator[Weight]:
    """Every f16 matrix that is multiplied with or looked up in, once each."""
    seen: set[str] = set()
    for node in model.get_ordered_ops():
        port = {"MatMul": 1, "Gather": 0}.get(node.get_type_name())
        if port is None:
            continue
        convert = node.input_value(port).get_node()
        if convert.get_type_name() != "Convert" or convert.get_name() in seen:
            continue
        constant = convert.input_value(0).get_node()
        if constant.get_type_name() != "Constant" or len(constant.get_output_shape(0)) != 2:
            continue
        if constant.get_output_element_type(0).get_type_name() == "f16":
            seen.add(convert.get_name())
            yield Weight(constant.data, convert.output(0))


def layer_weight(matrix: NDArray[Any], recipe: Recipe, keep_fine: bool) -> Any:
    """The f32 output of `matrix` (f16 or f32 [rows, columns]) in the recipe's form. With
    `keep_fine`, INT8 where the recipe says INT4."""
    if recipe.format in _INT4 and not keep_fine:
        group = group_size(matrix.shape[1], recipe.group_size)
        symmetric = recipe.format is WeightFormat.INT4
        return compressed((int4_symmetric if symmetric else int4_asymmetric)(matrix, group))
    if recipe.format in (*_INT4, WeightFormat.INT8):
        return compressed(int8_asymmetric(matrix))
    return plain(matrix, recipe.format)


def plain(matrix: NDArray[Any], form: WeightFormat) -> Any:
    """`matrix` as f16 or bf16."""
    import openvino as ov
    from openvino import opset13 as ops

    if form is not WeightFormat.BF16:
        return ops.convert(_constant(matrix.astype(np.float16)), np.float32).output(0)
    tensor = ov.Tensor(ov.Type.bf16, ov.Shape(matrix.shape))
    bits = bf16_rounded(matrix).view(np.uint32) >> np.uint32(16)
    tensor.data.view(np.uint16)[...] = bits.astype(np.uint16)
    return ops.convert(ov.op.Constant(tensor, shared_memory=True), np.float32).output(0)


def bf16_rounded(values: NDArray[Any]) -> NDArray[Any]:
    """The nearest values that bf16 has, ties to even, as f32."""
    bits: NDArray[Any] = np.ascontiguousarray(values, np.float32).view(np.uint32)
    kept = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (kept & np.uint32(0xFFFF0000)).view(np.float32)


def compressed(rounded: Rounded) -> Any:
    """The f32 output [rows, columns] of rounded weights."""
    from openvino import opset13 as ops

    rows, groups, group = rounded.codes.shape
    is_grouped = rounded.bits == 4
    shape: tuple[int, ...] = (rows, groups, group) if is_grouped else (rows, group)
    small = (*shape[:-1], 1)
    weight = ops.convert(_packed(rounded.codes, rounded.bits, shape), np.float16)
    if rounded.zero is not None:
        zero = ops.convert(_packed(rounded.zero, rounded.bits, small), np.float16)
        weight = ops.subtract(weight, zero)
    weight = ops.multiply(weight, _constant(rounded.scale.reshape(small)))
    if is_grouped:
        whole = _constant(np.array([rows, groups * group], np.int64))
        weight = ops.reshape(weight, whole, False)
    return ops.convert(weight, np.float32).output(0)


def _packed(codes: NDArray[Any], bits: int, shape: tuple[int, ...]) -> Any:
    """A Constant of u8, or of i4 or u4 with two codes a byte, the first in the lower half."""
    import openvino as ov

    if bits == 8:
        return _constant(codes.reshape(shape))
    pairs = codes.reshape(-1).view(np.uint8)
    if pairs.size % 2:
        pairs = np.append(pairs, np.uint8(0))
    tensor = ov.Tensor(ov.Type.i4 if codes.dtype == np.int8 else ov.Type.u4, ov.Shape(shape))
    tensor.data.view(np.uint8)[...] = (pairs[0::2] & 0x0F) | (pairs[1::2] << 4)
    return ov.op.Constant(tensor, shared_memory=True)


def _constant(data: NDArray[Any]) -> Any:
    """A Constant on memory of OpenVINO's own: it must not share that of an array, which goes."""
    import openvino as ov

    tensor = ov.Tensor(ov.Type(data.dtype), ov.Shape(data.shape))
    tensor.data[...] = data
    return ov.op.Constant(tensor, shared_memory=True)
