"""Checkpoints without a model in them: tables of tensors with known bytes, written by the book."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.weights.safetensors_writer import table_bytes

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 3,
    "vocab_size": 10,
    "max_position_embeddings": 64,
}


def layer_names(layers: int) -> list[str]:
    names = ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"]
    for layer in range(layers):
        names += [f"model.layers.{layer}.mlp.weight", f"model.layers.{layer}.norm.weight"]
    return names


def write_file(path: Path, tensors: Mapping[str, Any]) -> None:
    """F16 arrays as a safetensors file."""
    table: dict[str, Any] = {}
    data = b""
    for name, values in tensors.items():
        raw = np.asarray(values, dtype=np.float16).tobytes()
        shape = list(np.shape(values))
        place = [len(data), len(data) + len(raw)]
        table[name] = {"dtype": "F16", "shape": shape, "data_offsets": place}
        data += raw
    path.write_bytes(table_bytes(table, data))


def write_checkpoint(folder: Path, layers: int = 3, files: int = 1, **config: Any) -> Path:
    """Every tensor is [10, 4], filled with its place in the list of names."""
    names = layer_names(layers)
    tensors = {name: np.full((10, 4), place) for place, name in enumerate(names)}
    folder.mkdir(parents=True, exist_ok=True)
    merged = {**CONFIG, "num_hidden_layers": layers, **config}
    (folder / "config.json").write_text(json.dumps(merged))
    if files == 1:
        write_file(folder / "model.safetensors", tensors)
        return folder
    places: dict[str, str] = {}
    for number in range(files):
        file = f"model-{number + 1:05}-of-{files:05}.safetensors"
        own = names[number::files]
        write_file(folder / file, {name: tensors[name] for name in own})
        places.update(dict.fromkeys(own, file))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return folder
