"""Weights of an exported model become INT4 or INT8, by NNCF, from the weights alone.

An ov.Model and a Recipe enter; its constants are replaced. Called by the child before the
stand-ins are cut off: NNCF keeps the embedding and the last product (the head) in INT8, and in a
span's model these are the stand-ins, so that every layer is treated as in the whole model.
"""

from __future__ import annotations

import logging
import math
from typing import Any

from meshinfer.errors import StageFailed
from meshinfer.weights.recipe import Recipe, WeightFormat

SMALLEST_GROUP = 16
"""A row that no power of two from here up divides is kept in INT8."""


_HALVES = {WeightFormat.F16: "f16", WeightFormat.BF16: "bf16"}
_SMALLEST = 1024  # values; smaller constants are masks and tables, not weights


def compress(model: Any, recipe: Recipe) -> Any:
    """The model with its weights as the recipe says. Of F16, BF16 and ORIGINAL the types of numbers
    were chosen when the weights were loaded; see `halve`.

    Each constant is compressed by itself (ratio 1.0, no data), so the result does not depend on
    what else is in the model. Raises StageFailed.
    """
    if recipe.format not in (WeightFormat.INT4, WeightFormat.INT4_ASYM, WeightFormat.INT8):
        halve(model, _HALVES.get(recipe.format) or _main_half(model))
        return model
    import nncf

    nncf.set_log_level(logging.ERROR)
    try:
        if recipe.format is WeightFormat.INT8:
            return nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_ASYM)
        symmetric = recipe.format is WeightFormat.INT4
        modes = nncf.CompressWeightsMode
        return nncf.compress_weights(
            model,
            mode=modes.INT4_SYM if symmetric else modes.INT4_ASYM,
            ratio=1.0,
            group_size=recipe.group_size,
            awq=recipe.awq,
            advanced_parameters=nncf.AdvancedCompressionParameters(
                group_size_fallback_mode=nncf.GroupSizeFallbackMode.ADJUST,
                min_adjusted_group_size=SMALLEST_GROUP,
            ),
        )
    except (RuntimeError, ValueError) as error:
        text = " ".join(str(error).split())[:300]
        raise StageFailed(f"NNCF could not compress the weights to {recipe}: {text}") from error


def halve(model: Any, kind: str) -> bool:
    """Weights that the exporter widened to f32 (those of experts) are kept as `kind` ("f16", "bf16"
    or "", which does nothing) again, where that loses no bit. Returns whether there were any."""
    from openvino import opset13 as ops

    found = False
    for node in model.get_ordered_ops():
        if not kind or not _is_weight(node, "f32"):
            continue
        half = _exact_half(node.data, kind)
        if half is None:
            continue
        half.set_friendly_name(node.get_friendly_name())
        wide = ops.convert(half, "f32")
        for consumer in list(node.output(0).get_target_inputs()):
            consumer.replace_source_output(wide.output(0))
        found = True
    return found


def _main_half(model: Any) -> str:
    """The half-precision type that most weights have; "" when none has."""
    sizes = {
        kind: sum(
            math.prod(node.get_output_shape(0))
            for node in model.get_ordered_ops()
            if _is_weight(node, kind)
        )
        for kind in ("f16", "bf16")
    }
    largest = max(sizes, key=lambda kind: sizes[kind])
    return largest if sizes[largest] else ""


def _is_weight(node: Any, kind: str) -> bool:
    return bool(
        node.get_type_name() == "Constant"
        and node.get_element_type().get_type_name() == kind
        and math.prod(node.get_output_shape(0)) >= _SMALLEST
    )


def _exact_half(values: Any, kind: str) -> Any:
    """A constant of the f32 `values` in `kind`; None when that would change one of them."""
    import numpy as np
    import openvino as ov

    if kind == "bf16":
        bits = values.view(np.uint32)
        if (bits & 0xFFFF).any():
            return None
        tensor = ov.Tensor(ov.Type.bf16, values.shape)
        tensor.data.view(np.uint16)[:] = (bits >> 16).astype(np.uint16)
        return ov.op.Constant(tensor)
    with np.errstate(over="ignore", invalid="ignore"):
        half = values.astype(np.float16)
    if not np.array_equal(half.astype(np.float32), values):
        return None
    return ov.op.Constant(half, shared_memory=True)
