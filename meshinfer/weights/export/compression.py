"""Weights of an exported model become INT4 or INT8, by NNCF, from the weights alone.

An ov.Model and a Recipe enter; its constants are replaced. Called by the child before the
stand-ins are cut off: NNCF keeps the embedding and the last product (the head) in INT8, and in a
span's model these are the stand-ins, so that every layer is treated as in the whole model.
"""

from __future__ import annotations

import logging
from typing import Any

from meshinfer.errors import StageFailed
from meshinfer.weights.recipe import Recipe, WeightFormat

SMALLEST_GROUP = 16
"""A row that no power of two from here up divides is kept in INT8."""


def compress(model: Any, recipe: Recipe) -> Any:
    """The model with its weights as the recipe says; F16, BF16 and ORIGINAL are left as they are.

    Each constant is compressed by itself (ratio 1.0, no data), so the result does not depend on
    what else is in the model. Raises StageFailed.
    """
    if recipe.format not in (WeightFormat.INT4, WeightFormat.INT4_ASYM, WeightFormat.INT8):
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
