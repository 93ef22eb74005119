"""Packed and unpacked again, every tensor is what it was."""

from __future__ import annotations

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from meshinfer.weights.crossing import Tensor
from meshinfer.weights.packing import pack, unpack

pytestmark = pytest.mark.openvino

AXES: list[tuple[int | None, ...]] = [
    (None, None, 6),
    (None, 2, None, 4),
    (3, None, None, 2),
    (None, None, 2, 5),
    (None, None),
]
BATCH, LENGTH = 2, 3


@pytest.mark.parametrize("chosen", [[0], [1], [0, 1], [2, 0], [0, 1, 2, 3, 4]])
def test_there_and_back(chosen: list[int]) -> None:
    tensors = [Tensor(number, 0, AXES[number]) for number in chosen]
    inputs = [ops.parameter([axis or -1 for axis in one.axes], np.float32) for one in tensors]
    packed = pack(tensors, [one.output(0) for one in inputs])
    outputs = unpack(tensors, packed)
    model = ov.Model([ops.result(one) for one in (packed, *outputs)], inputs, "packing")
    compiled = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    random = np.random.default_rng(5)
    values = [random.normal(size=_shape(one)).astype(np.float32) for one in tensors]
    result = compiled(values)
    assert result[0].shape == (BATCH, LENGTH, sum(one.width for one in tensors))
    for number, value in enumerate(values, start=1):
        np.testing.assert_array_equal(result[number], value)


def _shape(tensor: Tensor) -> list[int]:
    unknown = iter((BATCH, LENGTH))
    return [next(unknown) if axis is None else axis for axis in tensor.axes]


def test_a_hidden_state_alone_is_not_touched() -> None:
    tensor = Tensor(0, 0, (None, None, 6))
    hidden = ops.parameter([-1, -1, 6], np.float32).output(0)
    assert pack([tensor], [hidden]) == hidden
    assert unpack([tensor], hidden) == [hidden]
