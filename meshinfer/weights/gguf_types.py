"""The types of tensors in GGUF files: how many bytes they take, and their real values.

Called when a file is opened (are all tensors within it?) and when its tensors are read. The numbers
are ggml's; the formulas for values are those of the `gguf` package, in NumPy.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

F32, F16, BF16 = 0, 1, 30
AS_READ = frozenset({F32, F16, 2, 3, 8, 12, 14})
"""Types that openvino_genai 2026.4 reads by itself: also Q4_0, Q4_1, Q8_0, Q4_K and Q6_K."""
_KEPT_FINELY = frozenset({F32, F16, BF16, 8, 14})


def type_name(kind: int) -> str:
    """As ggml calls it; for people."""
    import gguf

    try:
        return str(gguf.GGMLQuantizationType(kind).name)
    except ValueError:
        return f"type {kind}"


@cache
def is_known(kind: int) -> bool:
    """Whether `real_values` has a formula for it."""
    import gguf

    try:
        block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)]
        return real_values(np.zeros((1, size), np.uint8), kind).shape == (1, block)
    except (ValueError, NotImplementedError):
        return False


def is_fine(kind: int) -> bool:
    """More than 5.6 bits a weight. In mixtures such as Q4_K_M these are the sensitive tensors."""
    return kind in _KEPT_FINELY


def row_bytes(kind: int, columns: int) -> int:
    """Bytes of one row. Raises ValueError for an unknown type or a row that blocks do not fill."""
    import gguf

    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)]
    if columns % block:
        raise ValueError(f"rows of {columns} values are no blocks of {block}")
    return columns // block * size


def real_values(data: NDArray[Any], kind: int) -> NDArray[Any]:
    """uint8 [rows, row_bytes] -> f32 [rows, columns], as ggml computes them."""
    import gguf

    if kind in (F32, F16):
        return data.view(np.float32 if kind == F32 else np.float16).astype(np.float32)
    return np.asarray(gguf.quants.dequantize(data, gguf.GGMLQuantizationType(kind)), np.float32)
