from __future__ import annotations

from typing import Any

import pytest

from meshinfer.errors import MeshInferError, ShardCorrupt, StageFailed
from meshinfer.weights.gguf_header import GgufHeader, TensorInfo
from meshinfer.weights.gguf_layers import check_tensors, layer_of
from tests.weights.gguf_models import HEAD_SIZE, HIDDEN, VOCABULARY, metadata, shapes


def _header(
    architecture: str = "llama",
    without: str = "",
    tensors: dict[str, tuple[int, ...]] | None = None,
    **changes: Any,
) -> GgufHeader:
    table = {**shapes(architecture), **(tensors or {})}
    return GgufHeader(
        metadata(architecture, **changes),
        tuple(TensorInfo(name, shape, 0) for name, shape in table.items() if name != without),
    )


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("blk.0.attn_q.weight", 0),
        ("blk.117.ffn_up.weight", 117),
        ("output.weight", None),
        ("blk.x.attn_q.weight", None),
        ("blk.", None),
        ("blk.99999999.a", None),
        ("blk.²5.a", None),
    ],
)
def test_layers_of_tensors(name: str, layer: int | None) -> None:
    assert layer_of(name) == layer


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_a_whole_model_has_its_dimensions(architecture: str) -> None:
    sizes = check_tensors(_header(architecture))
    assert (sizes.layers, sizes.hidden, sizes.vocabulary) == (3, HIDDEN, VOCABULARY)
    assert sizes.head_size == HEAD_SIZE


@pytest.mark.parametrize(
    "name",
    ["token_embd.weight", "output_norm.weight", "blk.2.attn_k.weight", "blk.0.ffn_norm.weight"],
)
def test_a_missing_tensor_is_named(name: str) -> None:
    with pytest.raises(ShardCorrupt, match=f"no tensor {name}"):
        check_tensors(_header(without=name))


def test_qwen3_needs_the_norms_of_its_heads() -> None:
    with pytest.raises(ShardCorrupt, match="no tensor blk.1.attn_q_norm.weight"):
        check_tensors(_header("qwen3", without="blk.1.attn_q_norm.weight"))


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("blk.1.ffn_down.weight", (64, 96)),
        ("blk.1.attn_q.weight", (64, 64, 1)),
        ("blk.0.attn_norm.weight", (65,)),
        ("output.weight", (64, 81)),
        ("blk.0.attn_q.bias", (63,)),
    ],
)
def test_a_shape_that_does_not_fit_the_metadata_is_refused(name: str, shape: Any) -> None:
    with pytest.raises(ShardCorrupt, match=f"{name} has the shape"):
        check_tensors(_header(tensors={name: shape}))


@pytest.mark.parametrize(
    "name", ["blk.0.attn_sub_norm.weight", "blk.3.attn_q.weight", "output.bias", "a"]
)
def test_a_tensor_that_the_reader_would_leave_out_is_named(name: str) -> None:
    with pytest.raises(StageFailed, match=f"holds {name}"):
        check_tensors(_header(tensors={name: (64,)}))


@pytest.mark.parametrize(
    ("changes", "error", "why"),
    [
        ({"llama__block_count": 0}, ShardCorrupt, "block_count is 0"),
        ({"llama__block_count": 1 << 40}, ShardCorrupt, "block_count"),
        ({"llama__block_count": None}, ShardCorrupt, "block_count is None"),
        ({"llama__embedding_length": "64"}, ShardCorrupt, "embedding_length is 64"),
        ({"llama__attention__head_count": (4, 4)}, ShardCorrupt, "head_count"),
        ({"llama__attention__head_count": 0}, ShardCorrupt, "head_count"),
        ({"llama__attention__head_count": 1000}, ShardCorrupt, "key_length"),
        ({"llama__feed_forward_length": True}, ShardCorrupt, "feed_forward_length is True"),
        ({"llama__attention__value_length": 8}, StageFailed, "value_length is 8"),
        ({"llama__rope__dimension_count": 8}, StageFailed, "dimension_count is 8"),
    ],
)
def test_absurd_metadata_are_refused(
    changes: dict[str, Any], error: type[MeshInferError], why: str
) -> None:
    with pytest.raises(error, match=why):
        check_tensors(_header(**changes))
