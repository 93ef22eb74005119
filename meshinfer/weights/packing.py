"""Several tensors as one: what crosses a cut, side by side on the last axis, and apart again.

Engine and wire see a single activation [batch, length, width] whatever crosses. Only copies are
made, so both ways are exact. Called by the cut while it builds a stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from meshinfer.weights.crossing import Tensor


def pack(tensors: Sequence[Tensor], outputs: Sequence[Any]) -> Any:
    """f32 [batch, length, sum of widths] from one output for each tensor; a single tensor that has
    this form already is left as it is."""
    from openvino import opset13 as ops

    rows = [
        _row(tensor, output, f"packed_{number}")
        for number, (tensor, output) in enumerate(zip(tensors, outputs, strict=True))
    ]
    if len(rows) == 1:
        return rows[0]
    return _named(ops.concat(rows, 2), "packed")


def unpack(tensors: Sequence[Tensor], packed: Any) -> list[Any]:
    """The inverse of `pack`: one output for each tensor, with its own axes."""
    rows = [packed]
    if len(tensors) > 1:
        ends = list(accumulate(tensor.width for tensor in tensors))
        rows = [_taken(packed, *bounds) for bounds in zip([0, *ends], ends, strict=False)]
    return [
        _unrolled(tensor, row, f"unpacked_{number}")
        for number, (tensor, row) in enumerate(zip(tensors, rows, strict=True))
    ]


def _row(tensor: Tensor, output: Any, name: str) -> Any:
    from openvino import opset13 as ops

    first, second = _unknown(tensor)
    known = [place for place in range(len(tensor.axes)) if place not in (first, second)]
    order = [first, second, *known]
    if order != sorted(order):
        places = _constant(order, f"{name}/order")
        output = _named(ops.transpose(output, places), f"{name}/transposed")
    if len(known) == 1:
        return output
    shape = _constant([0, 0, tensor.width], f"{name}/shape")
    return _named(ops.reshape(output, shape, True), name)


def _taken(packed: Any, first: int, end: int) -> Any:
    """Numbers [first, end) of every token. A Gather, as OpenVINO makes one Split of several slices:
    where a single operation feeds both terms of a sum, the CPU plugin does not fuse that sum with
    the next operation, and at bf16 the stage would round where the whole model does not."""
    from openvino import opset13 as ops

    name = f"packed_{first}_{end}"
    places, axis = _constant(range(first, end), f"{name}/places"), _constant(2, f"{name}/axis")
    return _named(ops.gather(packed, places, axis), name)


def _unrolled(tensor: Tensor, row: Any, name: str) -> Any:
    from openvino import opset13 as ops

    first, second = _unknown(tensor)
    known = [place for place in range(len(tensor.axes)) if place not in (first, second)]
    if len(known) != 1:
        sizes = [tensor.axes[place] for place in known]
        shape = _constant([0, 0, *sizes], f"{name}/shape")
        row = _named(ops.reshape(row, shape, True), f"{name}/apart")
    order = [first, second, *known]
    if order == sorted(order):
        return row
    inverse = [order.index(place) for place in range(len(order))]
    return _named(ops.transpose(row, _constant(inverse, f"{name}/order")), name)


def _unknown(tensor: Tensor) -> tuple[int, int]:
    """Which axes are batch and length."""
    first, second = (place for place, axis in enumerate(tensor.axes) if axis is None)
    return first, second


def _constant(value: Any, name: str) -> Any:
    from openvino import opset13 as ops

    constant = ops.constant(np.array(value, np.int64))
    constant.set_friendly_name(name)
    return constant


def _named(node: Any, name: str) -> Any:
    """OpenVINO's own names count up over a process; equal cuts shall be equal files."""
    node.set_friendly_name(name)
    return node.output(0)
