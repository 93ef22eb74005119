from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshinfer.errors import ShardCorrupt
from meshinfer.weights.assembly import LayerSpan, even_spans
from meshinfer.weights.export.tensors import CheckpointTensors
from tests.export.checkpoint_folder import layer_names, write_checkpoint, write_file


@pytest.mark.parametrize("files", [1, 2, 3])
def test_tensors_are_found_in_whatever_file_they_lie(tmp_path: Path, files: int) -> None:
    folder = write_checkpoint(tmp_path, layers=3, files=files)
    found = CheckpointTensors.open(folder, 3)
    assert set(found.by_name) == set(layer_names(3))
    for place, name in enumerate(layer_names(3)):
        values = found.by_name[name].read().view(np.float16).reshape(10, 4)
        assert (values == place).all()


def test_a_span_counts_its_layers_from_0(tmp_path: Path) -> None:
    found = CheckpointTensors.open(write_checkpoint(tmp_path, layers=3), 3)
    span = found.of_span(LayerSpan(1, 3))
    assert sorted(span) == [
        "model.layers.0.mlp.weight",
        "model.layers.0.norm.weight",
        "model.layers.1.mlp.weight",
        "model.layers.1.norm.weight",
        "model.norm.weight",
    ]
    assert span["model.layers.1.mlp.weight"].name == "model.layers.2.mlp.weight"


def test_rows_are_read_alone(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    write_file(
        tmp_path / "model.safetensors",
        {name: np.arange(40).reshape(10, 4) for name in layer_names(3)},
    )
    tensor = CheckpointTensors.open(tmp_path, 3).embedding
    rows = tensor.read(first_row=3, rows=2).view(np.float16)
    assert rows.tolist() == list(range(12, 20))


@settings(max_examples=25, deadline=None)
@given(layers=st.integers(1, 12), longest=st.integers(1, 13))
def test_every_tensor_of_a_layer_is_in_exactly_one_span(
    tmp_path_factory: pytest.TempPathFactory, layers: int, longest: int
) -> None:
    folder = write_checkpoint(tmp_path_factory.mktemp("checkpoint"), layers=layers)
    found = CheckpointTensors.open(folder, layers)
    seen = [
        tensor.name
        for span in even_spans(layers, longest)
        for name, tensor in found.of_span(span).items()
        if ".layers." in name
    ]
    assert sorted(seen) == sorted(name for name in layer_names(layers) if ".layers." in name)
    assert sum(found.layer_bytes(layer) for layer in range(layers)) == len(seen) * 80


def test_tied_embeddings_have_no_head_of_their_own(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path)
    names = [name for name in layer_names(3) if name != "lm_head.weight"]
    write_file(folder / "model.safetensors", {name: np.zeros((10, 4)) for name in names})
    assert CheckpointTensors.open(folder, 3).head is None


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("model.layers.1.", "no tensors of layer 1"),
        ("model.embed_tokens.weight", "no embedding"),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, missing: str, said: str) -> None:
    folder = write_checkpoint(tmp_path)
    names = [name for name in layer_names(3) if not name.startswith(missing)]
    write_file(folder / "model.safetensors", {name: np.zeros((10, 4)) for name in names})
    with pytest.raises(ShardCorrupt, match=said):
        CheckpointTensors.open(folder, 3)


def test_a_cut_short_file_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    file = write_checkpoint(tmp_path) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ShardCorrupt, match="damaged"):
        CheckpointTensors.open(tmp_path, 3)


def test_a_file_that_shrinks_later_is_an_error_too(tmp_path: Path) -> None:
    found = CheckpointTensors.open(write_checkpoint(tmp_path), 3)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    last = max(found.by_name.values(), key=lambda tensor: tensor.offset)
    with pytest.raises(ShardCorrupt, match="ends within"):
        last.read()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, "names no tensors"),
        ({"x": 3}, "names no file"),
        ({"x": "model-00009-of-00009.safetensors"}, "is missing"),
        ({"model.embed_tokens.weight": "model.safetensors", "x": "model.safetensors"}, "lacks x"),
    ],
)
def test_an_index_that_lies_is_refused(tmp_path: Path, change: object, said: str) -> None:
    folder = write_checkpoint(tmp_path)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": change}))
    with pytest.raises(ShardCorrupt, match=said):
        CheckpointTensors.open(folder, 3)


def test_a_file_outside_of_the_folder_is_never_opened(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "checkpoint")
    write_file(tmp_path / "other.safetensors", {"x": np.zeros((1, 1))})
    index = {"weight_map": {"x": "../other.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ShardCorrupt):
        CheckpointTensors.open(folder, 3)
