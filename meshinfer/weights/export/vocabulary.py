"""The real embedding and head in the place of an exported part's stand-ins.

The two matrices are the largest tensors of most models and torch never holds them: a part is
exported with a vocabulary of a few rows, NNCF compresses these, and here the constants with as many
rows are replaced by ones made from the file, a slice of rows at a time. Every row is compressed by
itself, so the result equals that of the whole matrix at once; a test compares it with NNCF's.
Called by the child.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from meshinfer.errors import ShardCorrupt, StageFailed
from meshinfer.weights.cut import openvino_errors
from meshinfer.weights.export.tensors import CheckpointTensors, Tensor
from meshinfer.weights.recipe import Recipe, WeightFormat

_VALUES_AT_ONCE = 1 << 18
"""What is computed with them stays in a core's cache."""
_INT = (WeightFormat.INT4, WeightFormat.INT4_ASYM, WeightFormat.INT8)
_TYPES = {"F16": "f16", "BF16": "bf16", "F32": "f32"}


def stand_in_rows(tensors: CheckpointTensors) -> int:
    """A number of rows that no dimension of the model has: it tells the stand-ins' constants from
    all others."""
    taken = {size for tensor in tensors.by_name.values() for size in tensor.shape}
    # Heads, head sizes and groups divide dimensions; a prime divides few of them.
    primes = (37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97, 101, 103)
    for prime in primes:
        if all(size % prime for size in taken):
            return prime
    return max(taken) + 1


def put_in(model: Any, tensors: CheckpointTensors, recipe: Recipe, rows: int) -> None:
    """Replace the stand-ins in an ov.Model, in place. Raises StageFailed where the graph treats
    them in a way that is not known, ShardCorrupt."""
    matrices: dict[str, dict[str, Any]] = {}
    for constant in _stand_ins(model, rows):
        role = _role(constant)
        tensor = _source(tensors, role)
        if role == "bias":
            new = _plain(tensor, constant.get_element_type().get_type_name())
        else:
            parts = matrices.get(tensor.name)
            if parts is None:
                parts = matrices[tensor.name] = _matrix(tensor, recipe, constant, rows)
            new = parts[_part(constant)]
        new.set_friendly_name(constant.get_friendly_name())
        for consumer in list(constant.output(0).get_target_inputs()):
            consumer.replace_source_output(new.output(0))
    with openvino_errors("Putting the vocabulary in"):
        model.validate_nodes_and_infer_types()


def _stand_ins(model: Any, rows: int) -> list[Any]:
    return [
        node
        for node in model.get_ordered_ops()
        if node.get_type_name() == "Constant" and rows in list(node.get_output_shape(0))[:1]
    ]


def _role(constant: Any) -> str:
    """ "embedding", "head", "both" or "bias": what the rows are for, by who uses them."""
    uses = {kind for kind, _ in _users(constant)}
    if uses == {"Gather"}:
        return "embedding"
    if uses == {"MatMul"}:
        return "head"
    if uses == {"Gather", "MatMul"}:
        return "both"
    if uses == {"Add"}:
        return "bias"
    raise StageFailed(
        f"The vocabulary's matrix is used by {', '.join(sorted(uses))}, which is not known.",
        "Choose a GGUF or an OpenVINO IR of this model.",
    )


def _users(node: Any) -> Iterator[tuple[str, Any]]:
    """Operations behind the conversions and scales of a constant."""
    for target in node.output(0).get_target_inputs():
        user = target.get_node()
        kind = user.get_type_name()
        if kind in ("Convert", "Subtract", "Multiply"):
            yield from _users(user)
        else:
            yield kind, user


def _part(constant: Any) -> str:
    """ "codes", "zero" or "scale" of a compressed matrix; "values" of a plain one."""
    name = constant.get_element_type().get_type_name()
    columns = list(constant.get_output_shape(0))[1]
    if name == "u8":
        return "zero" if columns == 1 else "codes"
    return "scale" if columns == 1 else "values"


def _source(tensors: CheckpointTensors, role: str) -> Tensor:
    if role in ("embedding", "both"):
        return tensors.embedding
    found = tensors.head_bias if role == "bias" else tensors.head or tensors.embedding
    if found is None:
        raise ShardCorrupt("The checkpoint lacks the bias of its head.", "Fetch it again.")
    return found


def _matrix(tensor: Tensor, recipe: Recipe, stand_in: Any, rows: int) -> dict[str, Any]:
    """The constants that replace those of a stand-in of `rows` rows."""
    if recipe.format not in _INT:
        return {"values": _plain(tensor, stand_in.get_element_type().get_type_name())}
    return _int8(tensor)


def _plain(tensor: Tensor, kind: str) -> Any:
    """The tensor in the type `kind`, converted by rows where it has another."""
    import numpy as np
    import openvino as ov

    target = getattr(ov.Type, kind)
    if _TYPES.get(tensor.dtype) == kind:
        return _constant(tensor.read(), tensor.shape, target)
    size = 2 if kind in ("f16", "bf16") else 4
    whole = np.empty(tensor.size // _element_size(tensor) * size, dtype=np.uint8)
    place = 0
    for first, count in _slices(tensor):
        values = _values(tensor, first, count)
        data = _rounded(values, kind, tensor.name)
        whole[place : place + data.nbytes] = data.view(np.uint8).reshape(-1)
        place += data.nbytes
    return _constant(whole, tensor.shape, target)


def _rounded(values: Any, kind: str, name: str) -> Any:
    import numpy as np

    if kind == "f32":
        return values
    if kind == "bf16":  # to the nearest, ties to even
        bits = values.view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    with np.errstate(over="ignore", invalid="ignore"):
        half = values.astype(np.float16)
    if not np.isfinite(half).all():
        raise StageFailed(f"{name[:80]} holds values beyond the range of F16.", "Choose bf16.")
    return half


def _values(tensor: Tensor, first: int, count: int) -> Any:
    """Some rows as f32."""
    import numpy as np

    data = tensor.read(first, count)
    if tensor.dtype == "BF16":
        values = (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    else:
        values = data.view(np.float16 if tensor.dtype == "F16" else np.float32)
    return values.astype(np.float32, copy=False).reshape(count, *tensor.shape[1:])


def _int8(tensor: Tensor) -> dict[str, Any]:
    """Codes, zero points and scales of each row, in the bits that NNCF gives the whole matrix."""
    import numpy as np
    import openvino as ov

    rows, columns = tensor.shape
    codes = np.empty((rows, columns), dtype=np.uint8)
    zeros = np.empty((rows, 1), dtype=np.uint8)
    scales = np.empty((rows, 1), dtype=np.float16)
    for first, count in _slices(tensor):
        end = first + count
        part = _int8_rows(_values(tensor, first, count))
        codes[first:end], zeros[first:end], scales[first:end] = part
    return {
        "codes": ov.op.Constant(codes, shared_memory=True),
        "zero": ov.op.Constant(zeros, shared_memory=True),
        "scale": ov.op.Constant(scales, shared_memory=True),
    }


def _int8_rows(values: Any) -> tuple[Any, Any, Any]:
    """NNCF's INT8_ASYM (openvino/optimized_functions/models.py) in NumPy: calling it for a slice
    compiles a model each time, which takes longer than the rounding."""
    import numpy as np

    zero, most = np.float32(0), np.float32(255)
    least = np.minimum(values.min(axis=1, keepdims=True), zero)
    scale = (np.maximum(values.max(axis=1, keepdims=True), zero) - least) / most
    epsilon = np.finfo(np.float32).eps
    scale = np.where(np.abs(scale) < epsilon, epsilon, scale)
    zeros = np.clip(-np.rint(least / scale), zero, most)
    codes = values / scale
    codes += zeros
    np.clip(np.rint(codes, out=codes), zero, most, out=codes)
    return codes.astype(np.uint8), zeros.astype(np.uint8), scale.astype(np.float16)


def _slices(tensor: Tensor) -> Iterator[tuple[int, int]]:
    rows = tensor.shape[0]
    step = max(1, _VALUES_AT_ONCE * rows * _element_size(tensor) // tensor.size)
    for first in range(0, rows, step):
        yield first, min(step, rows - first)


def _element_size(tensor: Tensor) -> int:
    return 4 if tensor.dtype == "F32" else 2


def _constant(data: Any, shape: Any, kind: Any) -> Any:
    """A constant over these bytes; only bf16, which NumPy does not know, is copied."""
    import numpy as np
    import openvino as ov

    types = {"f32": np.float32, "f16": np.float16, "bf16": np.uint16}
    values = data.view(types[kind.get_type_name()]).reshape(tuple(shape))
    if kind == ov.Type.bf16:
        tensor = ov.Tensor(kind, tuple(shape))
        tensor.data.view(np.uint16)[:] = values
        return ov.op.Constant(tensor)
    return ov.op.Constant(values, shared_memory=True)
