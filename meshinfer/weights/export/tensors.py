"""Which tensors a safetensors checkpoint has, which layer each belongs to, and their bytes.

A folder enters; tables and raw bytes leave. Called by `run` (to plan) and by the child (to read).
Files are read, never mapped: a mapping of a file that shrinks meanwhile would end the process.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meshinfer.errors import ShardCorrupt
from meshinfer.weights.assembly import LayerSpan
from meshinfer.weights.checkpoint import read_json
from meshinfer.weights.safetensors_header import TensorEntry, read_header
from meshinfer.weights.selection import INDEX, refuse_hostile

_AGAIN = "Fetch the checkpoint again."
_HEAD_BYTES = 64
_SINGLE = "model.safetensors"
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|layer)\.(\d+)\.")
_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight")
_HEADS = ("lm_head.weight", "embed_out.weight")
_HEAD_BIASES = ("lm_head.bias", "embed_out.bias")


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor in a file; `offset` is where its bytes begin."""

    name: str
    dtype: str  # as safetensors names it: "F16", "BF16", "F32"
    shape: tuple[int, ...]
    file: Path
    offset: int
    size: int  # bytes

    def read(self, first_row: int = 0, rows: int | None = None) -> Any:
        """The bytes (of some rows along the first axis) as a NumPy u8 array of one axis. Raises
        ShardCorrupt when the file became shorter."""
        import numpy as np

        offset, size = self.offset, self.size
        if rows is not None:
            row_size = self.size // self.shape[0]
            offset, size = offset + first_row * row_size, rows * row_size
        data = np.fromfile(self.file, dtype=np.uint8, count=size, offset=offset)
        if data.size != size:
            raise ShardCorrupt(f"{self.file.name} ends within {self.name[:80]}.", _AGAIN)
        return data

    def head_bytes(self) -> bytes:
        """The first few bytes, to tell tensors of one shape apart."""
        with self.file.open("rb") as file:
            file.seek(self.offset)
            return file.read(min(self.size, _HEAD_BYTES))


@dataclass(frozen=True, slots=True)
class CheckpointTensors:
    """Every tensor by name. `layers` is what config.json says; tensors of higher layers (heads for
    predicting several tokens) are left out."""

    layers: int
    by_name: Mapping[str, Tensor]
    embedding: Tensor
    head: Tensor | None  # None: the embedding's matrix serves
    head_bias: Tensor | None
    _layer_of: Mapping[str, int] = field(repr=False)

    @classmethod
    def open(cls, folder: Path, layers: int) -> CheckpointTensors:
        """Raises ShardCorrupt: damaged or missing files, no embedding, layers without tensors."""
        tensors = {one.name: one for one in _tensors(folder)}
        numbers = {name: int(found[1]) for name in tensors if (found := _LAYER.search(name))}
        missing = sorted(set(range(layers)) - set(numbers.values()))
        if missing:
            raise ShardCorrupt(
                f"The checkpoint has no tensors of layer {missing[0]}; its configuration names "
                f"{layers} layers.",
                _AGAIN,
            )
        embedding = _ending(tensors, _EMBEDDINGS)
        if embedding is None:
            raise ShardCorrupt(
                f"The checkpoint has no embedding (a tensor named {_EMBEDDINGS[0]}).", _AGAIN
            )
        head = _ending(tensors, _HEADS)
        return cls(layers, tensors, embedding, head, _ending(tensors, _HEAD_BIASES), numbers)

    @property
    def total_bytes(self) -> int:
        return sum(tensor.size for tensor in self.by_name.values())

    def of_layer(self, layer: int) -> tuple[Tensor, ...]:
        return tuple(self.by_name[name] for name, own in self._layer_of.items() if own == layer)

    def layer_bytes(self, layer: int) -> int:
        return sum(tensor.size for tensor in self.of_layer(layer))

    def of_span(self, span: LayerSpan) -> dict[str, Tensor]:
        """What a model of these layers alone reads, under the names that it gives: layers counted
        from 0, the norm behind the last layer, but no embedding and no head."""
        apart = {self.embedding.name}
        apart |= {one.name for one in (self.head, self.head_bias) if one is not None}
        found: dict[str, Tensor] = {}
        for name, tensor in self.by_name.items():
            layer = self._layer_of.get(name)
            if layer is None and name not in apart:
                found[name] = tensor
            elif layer is not None and span.first <= layer < span.end:
                found[_renumbered(name, layer - span.first)] = tensor
        return found

    def main_dtype(self) -> str:
        """The type that most bytes of the layers have."""
        sizes: dict[str, int] = {}
        for name in self._layer_of:
            tensor = self.by_name[name]
            sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.size
        return max(sorted(sizes), key=lambda dtype: sizes[dtype])


def _renumbered(name: str, layer: int) -> str:
    found = _LAYER.search(name)
    assert found is not None
    return f"{name[: found.start(1)]}{layer}{name[found.end(1) :]}"


def _ending(tensors: Mapping[str, Tensor], endings: tuple[str, ...]) -> Tensor | None:
    for name in sorted(tensors, key=len):
        if any(name == ending or name.endswith(f".{ending}") for ending in endings):
            return tensors[name]
    return None


def _tensors(folder: Path) -> Iterator[Tensor]:
    for file, wanted in _files(folder).items():
        path = folder / file
        if not path.is_file():
            raise ShardCorrupt(f"{file} is missing.", _AGAIN)
        header = read_header(path)
        entries = {entry.name: entry for entry in header.tensors}
        absent = (wanted or set()) - entries.keys()
        if absent:
            raise ShardCorrupt(f"{file} lacks {min(absent)[:80]}, which the index names.", _AGAIN)
        for entry in header.tensors:
            if wanted is None or entry.name in wanted:
                yield _located(path, entry, header.data_offset)


def _located(path: Path, entry: TensorEntry, data_offset: int) -> Tensor:
    size = entry.end - entry.begin
    return Tensor(entry.name, entry.dtype, entry.shape, path, data_offset + entry.begin, size)


def _files(folder: Path) -> dict[str, set[str] | None]:
    """Files of weights, and which tensors of each count (None: all)."""
    if not (folder / INDEX).is_file():
        return {_SINGLE: None}
    table = read_json(folder / INDEX).get("weight_map")
    if not isinstance(table, dict) or not table:
        raise ShardCorrupt(f"{INDEX} names no tensors.", _AGAIN)
    files: dict[str, set[str] | None] = {}
    for tensor, file in table.items():
        if not isinstance(file, str):
            raise ShardCorrupt(f"{INDEX} names no file for {tensor[:80]}.", _AGAIN)
        refuse_hostile(file)
        wanted = files.setdefault(file, set())
        assert wanted is not None
        wanted.add(tensor)
    return files
