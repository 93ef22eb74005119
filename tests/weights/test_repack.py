from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray
from openvino import opset13 as ops

from meshinfer.weights.int4 import int4_asymmetric, int4_symmetric, int8_asymmetric
from meshinfer.weights.recipe import Recipe, WeightFormat
from meshinfer.weights.repack import bf16_rounded, find_weights, layer_weight, plain

pytestmark = [pytest.mark.openvino, pytest.mark.slow]

EXACT = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
MATRIX = (np.random.default_rng(3).standard_normal((48, 128)) * 0.05).astype(np.float16)

# The operations from the Constant to the MatMul as NNCF 3.4 writes them (compress_weights of a
# small model), with the types that leave them.
NNCF: dict[str, list[tuple[str, str]]] = {
    "int4": [("Constant", "i4"), ("Convert", "f16"), ("Multiply", "f16"), ("Reshape", "f16")],
    "int4-asym": [
        ("Constant", "u4"),
        ("Convert", "f16"),
        ("Subtract", "f16"),
        ("Multiply", "f16"),
        ("Reshape", "f16"),
    ],
    "int8": [("Constant", "u8"), ("Convert", "f16"), ("Subtract", "f16"), ("Multiply", "f16")],
    "f16": [("Constant", "f16")],
    "bf16": [("Constant", "bf16")],
}


def _model(weight: Any) -> Any:
    value = ops.parameter([-1, MATRIX.shape[1]], np.float32)
    return ov.Model([ops.result(ops.matmul(value, weight, False, True))], [value], "one")


def _product(weight: Any, value: NDArray[Any]) -> NDArray[Any]:
    result: NDArray[Any] = ov.Core().compile_model(_model(weight), "CPU", EXACT)(value)[0]
    return result


def _line(output: Any) -> list[tuple[str, str]]:
    """From the Constant to `output`, along first inputs."""
    node, line = output.get_node(), []
    while True:
        line.append((node.get_type_name(), node.get_output_element_type(0).get_type_name()))
        if not node.get_input_size():
            return line[::-1]
        node = node.input_value(0).get_node()


@pytest.mark.parametrize("form", NNCF)
def test_each_form_is_written_as_nncf_does(form: str) -> None:
    output = layer_weight(MATRIX, Recipe(WeightFormat(form), 32), False)
    assert _line(output) == [*NNCF[form], ("Convert", "f32")]


@pytest.mark.parametrize("columns", [128, 96])  # 3 groups of 32: an odd number of zero points
@pytest.mark.parametrize("rounding", [int4_symmetric, int4_asymmetric])
def test_the_device_computes_with_the_values_that_were_rounded_to(
    rounding: Any, columns: int
) -> None:
    matrix = MATRIX[:47, :columns]
    symmetric = rounding is int4_symmetric
    form = WeightFormat.INT4 if symmetric else WeightFormat.INT4_ASYM
    output = layer_weight(matrix, Recipe(form, 32), False)
    value = ops.parameter([-1, columns], np.float32)
    model = ov.Model([ops.result(ops.matmul(value, output, False, True))], [value], "one")
    given = np.eye(columns, dtype=np.float32)
    found = ov.Core().compile_model(model, "CPU", EXACT)(given)[0]
    np.testing.assert_allclose(found, rounding(matrix, 32).values().T, atol=1e-6)


def test_fine_tensors_stay_in_eight_bits() -> None:
    output = layer_weight(MATRIX, Recipe(), True)
    assert _line(output)[0] == ("Constant", "u8")
    found = _product(output, np.eye(128, dtype=np.float32))
    np.testing.assert_allclose(found, int8_asymmetric(MATRIX).values().T, atol=1e-6)


def test_bf16_is_rounded_to_the_nearest_even() -> None:
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0xBF807FFF], np.uint32)
    expected = np.array([0x3F800000, 0x3F820000, 0x3F810000, 0xBF800000], np.uint32)
    assert np.array_equal(bf16_rounded(bits.view(np.float32)).view(np.uint32), expected)
    found = _product(plain(MATRIX, WeightFormat.BF16), np.eye(128, dtype=np.float32))
    assert np.array_equal(found, bf16_rounded(MATRIX).T)


def test_a_matrix_with_two_readers_is_found_once_and_replaced_in_both() -> None:
    """A tied embedding."""
    shared = ops.convert(ops.constant(MATRIX), np.float32)
    tokens = ops.parameter([-1], np.int32)
    looked_up = ops.gather(shared, tokens, ops.constant(np.int32(0)))
    logits = ops.matmul(looked_up, shared, False, True)
    model = ov.Model([ops.result(logits)], [tokens], "tied")
    (weight,) = find_weights(model)
    assert np.array_equal(weight.matrix, MATRIX)
    weight.replace(layer_weight(np.vstack([MATRIX, MATRIX]), Recipe(WeightFormat.F16), False))
    model.validate_nodes_and_infer_types()
    assert list(find_weights(model))[0].matrix.shape == (96, 128)
    found = ov.Core().compile_model(model, "CPU", EXACT)(np.array([50], np.int32))[0]
    single = MATRIX.astype(np.float32)
    np.testing.assert_allclose(found[0, :48], single @ single[2], rtol=1e-5, atol=1e-6)


def test_vectors_and_other_types_are_left_alone() -> None:
    value = ops.parameter([-1, 128], np.float32)
    scaled = ops.multiply(value, ops.convert(ops.constant(MATRIX[0]), np.float32))
    other = ops.constant(MATRIX.astype(np.float32))
    model = ov.Model([ops.result(ops.matmul(scaled, other, False, True))], [value], "none")
    assert list(find_weights(model)) == []
