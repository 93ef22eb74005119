"""A draft model whose head computes only some tokens of the vocabulary.

The head is the largest matrix of a small model, and most of its rows are never drafted. Constants
are cut along the vocabulary wherever the logits are made from them; an embedding that shares them
stays whole. A model goes in before it is loaded, another one comes out. Called where a draft loads.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshinfer.engine.openvino_error import openvino_errors
from meshinfer.errors import StageFailed

USUAL_TOKENS = 32768
"""Byte-pair training numbers tokens in the order of its merges, the most frequent pair first, so
what stands behind these is rare."""

_NIBBLES = ("i4", "u4")
_SAME_SHAPE = {"Add", "Convert", "Divide", "Multiply", "Subtract"}
"""Of a tensor and of what it is broadcast with: an axis is the same one on both sides."""

_BEHIND_HEAD = {"Add", "Convert", "Divide", "Multiply", "Tanh"}
"""What may stand between the head's MatMul and the Result: bias, soft capping, scale."""


def kept_tokens(size: int, special: Iterable[int], extra: Iterable[int] = ()) -> NDArray[np.int64]:
    """Ids that a draft may guess, ascending: the usual ones of a vocabulary of `size`, those that
    end or structure a text, and `extra`. Ids that are no tokens are left out."""
    named = {token for some in (special, extra) for token in some if USUAL_TOKENS <= token < size}
    usual = np.arange(min(size, USUAL_TOKENS), dtype=np.int64)
    return np.concatenate([usual, np.array(sorted(named), np.int64)])


def trimmed(model: Any, tokens: NDArray[np.int64]) -> Any:
    """An `openvino.Model` whose logits have len(tokens) columns; column j is that of tokens[j].

    `model` is as it was read, whole and stateful, and stays so; both share all other constants.
    Raises StageFailed: "... cannot be trimmed". The whole head serves then.
    """
    with openvino_errors("Trimming the model's head", "Use the whole head."):
        copy = model.clone()
        size = _width(copy)
        if not len(tokens) or not 0 <= int(tokens.min()) <= int(tokens.max()) < size:
            raise _refused(f"tokens outside 0..{size - 1}")
        head = _trim_behind_head(copy, tokens, size)
        weights = head.input(1)
        is_transposed = head.get_attributes()["transpose_b"]
        weights.replace_source_output(
            _trimmed_source(weights, 0 if is_transposed else 1, tokens, size)
        )
        copy.validate_nodes_and_infer_types()
        if _width(copy) != len(tokens):
            raise _refused(f"{_width(copy)} logits for {len(tokens)} tokens")
    return copy


def _refused(reason: str) -> StageFailed:
    return StageFailed(f"This model's head cannot be trimmed ({reason}).", "Use the whole head.")


def _width(model: Any) -> int:
    """Logits of one row. Raises StageFailed: the model has none, or does not say."""
    results = model.get_results()
    shape = results[0].get_output_partial_shape(0) if len(results) == 1 else None
    if shape is None or shape.rank.is_dynamic or not len(shape) or not shape[-1].is_static:
        raise _refused("logits of no fixed size")
    return int(shape[-1].get_length())


def _trim_behind_head(model: Any, tokens: NDArray[np.int64], size: int) -> Any:
    """Cut what is applied to the logits. Returns the MatMul that makes them."""
    node = model.get_results()[0].input(0).get_source_output().get_node()
    while node.get_type_name() in _BEHIND_HEAD:
        made_by = node.input(0)
        for port in node.inputs():
            if _is_constant(port):
                axis = _rank(port) - 1
                if axis >= 0 and port.get_shape()[axis] != 1:
                    port.replace_source_output(_trimmed_source(port, axis, tokens, size))
            else:
                made_by = port
        node = made_by.get_source_output().get_node()
    if node.get_type_name() != "MatMul":
        raise _refused(f"logits come from a {node.get_type_name()}")
    return node


def _is_constant(port: Any) -> bool:
    """Whether nothing but constants makes what arrives here."""
    waiting, seen = [port.get_source_output().get_node()], 0
    while waiting:
        node = waiting.pop()
        seen += 1
        is_source = not node.get_input_size()
        if (is_source and node.get_type_name() != "Constant") or seen > 32:
            return False
        waiting += [one.get_source_output().get_node() for one in node.inputs()]
    return True


def _rank(port: Any) -> int:
    return len(port.get_partial_shape())


def _trimmed_source(port: Any, axis: int, tokens: NDArray[np.int64], size: int) -> Any:
    """What arrives at `port`, with the indices `tokens` along `axis` only. A copy: others, as the
    embedding, go on reading the whole."""
    import openvino as ov

    if not _is_constant(port):
        raise _refused("its weights are computed")
    # Cloned as a model, so that notes on the operations stay: they keep the plugin from computing
    # compressed weights beforehand.
    branch = ov.Model([port.get_source_output()], [], "head").clone()
    result = branch.get_results()[0].input(0)
    if result.get_shape()[axis] != size:
        raise _refused(f"weights {list(result.get_shape())} for {size} logits")
    _trim(result, axis, tokens, size)
    branch.validate_nodes_and_infer_types()
    return result.get_source_output()


def _trim(port: Any, axis: int, tokens: NDArray[np.int64], size: int) -> None:
    """Cut all constants that make what arrives at `port`, whose extent on `axis` is `size`."""
    node = port.get_source_output().get_node()
    kind = node.get_type_name()
    if kind == "Constant":
        port.replace_source_output(_taken(node, axis, tokens).output(0))
    elif kind in _SAME_SHAPE:
        rank = _rank(port)
        for one in node.inputs():
            own = axis - rank + _rank(one)  # shapes are aligned at their last axes
            if own >= 0 and one.get_shape()[own] != 1:
                _trim(one, own, tokens, size)
    elif kind == "Transpose":
        order = _values(node.input(1))
        _trim(node.input(0), int(order[axis]), tokens, size)
    elif kind == "Reshape":
        _trim_reshaped(node, axis, tokens, size)
    else:
        raise _refused(f"its weights come from a {kind}")


def _trim_reshaped(node: Any, axis: int, tokens: NDArray[np.int64], size: int) -> None:
    """Groups of the input axis are joined; the vocabulary is the first or the last axis of both."""
    from openvino import opset13 as ops

    source, target = node.input(0), node.input(1)
    before, after = list(source.get_shape()), list(node.get_output_shape(0))
    if axis == 0 and before[0] == size:
        own = 0
    elif axis == len(after) - 1 and before[-1] == size:
        own = len(before) - 1
    else:
        raise _refused(f"its weights change from {before} to {after}")
    after[axis] = len(tokens)
    target.replace_source_output(ops.constant(np.array(after, np.int64)).output(0))
    _trim(source, own, tokens, size)


def _values(port: Any) -> NDArray[np.int64]:
    node = port.get_source_output().get_node()
    if node.get_type_name() != "Constant":
        raise _refused(f"its weights depend on a {node.get_type_name()}")
    values: NDArray[np.int64] = node.data.astype(np.int64).ravel()
    return values


def _taken(constant: Any, axis: int, tokens: NDArray[np.int64]) -> Any:
    """A constant of the same type, with `tokens` along `axis`."""
    import openvino as ov
    from openvino import opset13 as ops

    kind, shape = constant.get_element_type(), list(constant.get_output_shape(0))
    name = kind.get_type_name()
    data: NDArray[Any] = constant.data
    if name in _NIBBLES:
        data = _nibbles(data, shape)
    elif list(data.shape) != shape:
        raise _refused(f"weights in {name}")
    chosen = np.ascontiguousarray(data.take(tokens, axis=axis))
    shape[axis] = len(tokens)
    if name in _NIBBLES:
        chosen = _bytes_of(chosen)
    tensor = ov.Tensor(chosen, ov.Shape(shape), kind)
    # Not shared: the array would have to outlive the model.
    return ops.constant(tensor, shared_memory=False)


def _nibbles(data: NDArray[np.uint8], shape: list[int]) -> NDArray[np.uint8]:
    """One code a byte, [shape]; two were in each, the first in the lower half, as `weights.repack`
    writes them."""
    codes = np.empty(2 * data.size, np.uint8)
    codes[0::2], codes[1::2] = data.ravel() & 15, data.ravel() >> 4
    return codes[: int(np.prod(shape))].reshape(shape)


def _bytes_of(codes: NDArray[Any]) -> NDArray[np.uint8]:
    """Two codes a byte again."""
    flat = np.zeros(codes.size + codes.size % 2, np.uint8)
    flat[: codes.size] = codes.ravel()
    return np.bitwise_or(flat[0::2], np.left_shift(flat[1::2], np.uint8(4)))
