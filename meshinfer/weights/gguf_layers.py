"""The tensors that a GGUF of a known architecture must have, with their shapes.

The reader does not compare shapes with the metadata, and it leaves out what it does not know: both
would give wrong numbers without an error. Pure. Called before anything is converted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshinfer.errors import ShardCorrupt, StageFailed
from meshinfer.weights.gguf_header import GgufHeader, TensorInfo

Shape = tuple[int, ...]

_MOST_LAYERS = 1024
_MOST_WIDTH = 1 << 20
EMBEDDING, HEAD, LAST_NORM = "token_embd.weight", "output.weight", "output_norm.weight"
_OTHER_SOURCE = "Choose another model, or export this one from its original checkpoint."


@dataclass(frozen=True, slots=True)
class Dimensions:
    """`vocabulary` is the number of rows of the embedding."""

    layers: int
    hidden: int
    feed_forward: int
    heads: int
    heads_kv: int
    head_size: int
    vocabulary: int


def layer_of(name: str) -> int | None:
    """The layer that a tensor belongs to: `blk.7.attn_q.weight` -> 7."""
    first, _, rest = name.partition(".")
    number = rest.partition(".")[0]
    return int(number) if first == "blk" and number.isdecimal() and len(number) < 6 else None


def check_tensors(header: GgufHeader) -> Dimensions:
    """Raises ShardCorrupt (a tensor is missing or has another shape than the metadata say),
    StageFailed (there is one that the reader would leave out)."""
    there = {tensor.name: tensor for tensor in header.tensors}
    sizes = _dimensions(header, there)
    needed, optional = _expected(sizes, header.architecture)
    for name, shape in {**needed, **optional}.items():
        tensor = there.pop(name, None)
        if tensor is not None and tensor.shape != shape:
            raise ShardCorrupt(
                f"The GGUF's {name} has the shape {list(tensor.shape)}; "
                f"by its metadata it should be {list(shape)}."
            )
        if tensor is None and name in needed:
            raise ShardCorrupt(f"The GGUF has no tensor {name}.", "Get it again.")
    if there:
        raise StageFailed(
            f"The GGUF holds {min(there)[:60]}, which OpenVINO's GGUF reader does not read: "
            "the answers would be wrong.",
            _OTHER_SOURCE,
        )
    return sizes


def _dimensions(header: GgufHeader, there: Mapping[str, TensorInfo]) -> Dimensions:
    hidden = _number(header, "embedding_length")
    heads = _number(header, "attention.head_count")
    head_size = _number(header, "attention.key_length", hidden // heads)
    _same(header, "attention.value_length", head_size)
    _same(header, "rope.dimension_count", head_size)
    embedding = there.get(EMBEDDING)
    if embedding is None or len(embedding.shape) != 2:
        raise ShardCorrupt(f"The GGUF has no tensor {EMBEDDING}.", "Get it again.")
    return Dimensions(
        layers=_number(header, "block_count", most=_MOST_LAYERS),
        hidden=hidden,
        feed_forward=_number(header, "feed_forward_length"),
        heads=heads,
        heads_kv=_number(header, "attention.head_count_kv", heads),
        head_size=head_size,
        vocabulary=embedding.shape[1],
    )


def _number(header: GgufHeader, key: str, default: int = 0, most: int = _MOST_WIDTH) -> int:
    value = header.of_architecture(key)
    number: Any = default if value is None else value
    if isinstance(number, bool) or not isinstance(number, int) or not 0 < number <= most:
        raise ShardCorrupt(f"The GGUF says that {key} is {str(value)[:30]}.", _OTHER_SOURCE)
    return number


def _same(header: GgufHeader, key: str, head_size: int) -> None:
    """The reader knows one size of heads, and turns all of it."""
    value = header.of_architecture(key)
    if value not in (None, head_size):
        raise StageFailed(
            f"The GGUF's {key} is {str(value)[:30]} where its heads have {head_size}, which "
            "OpenVINO's GGUF reader does not read: the answers would be wrong.",
            _OTHER_SOURCE,
        )


def _expected(sizes: Dimensions, architecture: str) -> tuple[dict[str, Shape], dict[str, Shape]]:
    """Shapes of what must be there and of what may be."""
    hidden, vocabulary = sizes.hidden, sizes.vocabulary
    needed: dict[str, Shape] = {EMBEDDING: (hidden, vocabulary), LAST_NORM: (hidden,)}
    optional: dict[str, Shape] = {HEAD: (hidden, vocabulary)}
    matrices = _matrices(sizes)
    for layer in range(sizes.layers):
        for name, shape in matrices.items():
            needed[f"blk.{layer}.{name}.weight"] = shape
            optional[f"blk.{layer}.{name}.bias"] = shape[1:]
        for name in ("attn_norm", "ffn_norm"):
            needed[f"blk.{layer}.{name}.weight"] = (hidden,)
        for name in ("attn_q_norm", "attn_k_norm"):
            target = needed if architecture == "qwen3" else optional
            target[f"blk.{layer}.{name}.weight"] = (sizes.head_size,)
    return needed, optional


def _matrices(sizes: Dimensions) -> dict[str, Shape]:
    queries, keys = sizes.heads * sizes.head_size, sizes.heads_kv * sizes.head_size
    return {
        "attn_q": (sizes.hidden, queries),
        "attn_k": (sizes.hidden, keys),
        "attn_v": (sizes.hidden, keys),
        "attn_output": (queries, sizes.hidden),
        "ffn_gate": (sizes.hidden, sizes.feed_forward),
        "ffn_up": (sizes.hidden, sizes.feed_forward),
        "ffn_down": (sizes.feed_forward, sizes.hidden),
    }
