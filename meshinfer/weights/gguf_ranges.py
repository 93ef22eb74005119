"""Small GGUF files out of a large one: the layers of one range, or the tokenizer alone.

A GgufFile and a span of layers enter, a file that openvino_genai reads in the memory of that range
leaves. Called by the conversion, range by range; nothing holds more than one tensor.

Layers are numbered from 0. Everything else of the model is left out or tiny: a vocabulary of a few
tokens saves each range the conversion of a tokenizer, and an embedding and a head of a few rows
stand in for the real ones, which the repack puts in. The weights of layers become f16, because the
reader's own reading of 4-bit types rounds their zero points to whole numbers: SmolLM2 in Q4_1 then
differs by a KL of 0.34 from itself (Qwen2.5 1.5B in Q4_K_M by 0.031). Only a model that is kept as
the reader has it gets its bytes as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshinfer.errors import StageFailed
from meshinfer.weights.assembly import LayerSpan
from meshinfer.weights.gguf_file import GgufFile, Place
from meshinfer.weights.gguf_layers import EMBEDDING, HEAD, LAST_NORM, layer_of
from meshinfer.weights.gguf_types import AS_READ, F16, F32
from meshinfer.weights.gguf_writer import TensorToWrite, write_gguf

STAND_IN_ROWS = 8
_KEYS = (
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_rms_epsilon",
    "rope.freq_base",
)
_TOKENIZER: dict[str, Any] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "qwen2",
    "tokenizer.ggml.tokens": ("a", "b", "ab", "<s>"),
    "tokenizer.ggml.token_type": (1, 1, 1, 3),
    "tokenizer.ggml.merges": ("a b",),
    "tokenizer.ggml.bos_token_id": 3,
    "tokenizer.ggml.eos_token_id": 3,
    "tokenizer.ggml.padding_token_id": 3,
}
_FILE_TYPE = 15  # Q4_K_M; with 0 or 1 the reader would ask for an f16 cache

Mark = tuple[tuple[int, int], bytes, bytes]
"""A matrix by its [rows, columns], first and last row in f16. The reader moves rows within the
heads of queries and keys, never the first and the last."""


@dataclass(frozen=True, slots=True)
class WrittenRange:
    """`names` finds the tensor of the large file that a matrix of the small one holds; it is empty
    where weights were not made f16."""

    path: Path
    names: Mapping[Mark, str]


def mark_of(matrix: NDArray[Any]) -> Mark:
    """`matrix` f16 [rows, columns]."""
    rows, columns = matrix.shape
    return (rows, columns), matrix[0].tobytes(), matrix[-1].tobytes()


def write_range(file: GgufFile, span: LayerSpan, path: Path) -> WrittenRange:
    """The layers of `span` in f16, with stand-ins for embedding and head.

    Raises DiskFull, ShardCorrupt, StageFailed (a weight beyond what f16 holds).
    """
    names: dict[Mark, str] = {}
    tensors = []
    for name, place in _of_span(file, span):
        if place.rows == 1 and len(place.info.shape) == 1:
            tensors.append(_vector(file, name, span))
            continue
        data = partial(_in_half, place, names)
        tensors.append(TensorToWrite(_renumbered(name, span), place.info.shape, F16, data))
    for name in (EMBEDDING, HEAD):
        if name in file.places:
            tensors.append(_stand_in(file, name, names))
    tensors.append(_vector(file, LAST_NORM, span))
    metadata = {**_metadata(file, span), "general.file_type": _FILE_TYPE}
    write_gguf(path, metadata, tensors)
    return WrittenRange(path, names)


def write_range_as_it_is(file: GgufFile, span: LayerSpan, path: Path, last: bool) -> WrittenRange:
    """The layers of `span` in the types they have, where the reader reads them (else f16). The
    embedding is there in the first span, the head in the `last`. Raises as `write_range`."""
    tensors = [_as_it_is(place, _renumbered(name, span)) for name, place in _of_span(file, span)]
    is_tied = HEAD not in file.places
    for name, is_real in ((EMBEDDING, not span.first or (last and is_tied)), (HEAD, last)):
        if name in file.places and is_real:
            tensors.append(_as_it_is(file.places[name], name))
        elif name in file.places:
            tensors.append(_stand_in(file, name, {}))
    tensors.append(_vector(file, LAST_NORM, span))
    kind = file.header.metadata.get("general.file_type")
    metadata = {**_metadata(file, span), "general.file_type": kind if _is_count(kind) else 0}
    write_gguf(path, metadata, tensors)
    return WrittenRange(path, {})


def write_tokenizer(file: GgufFile, path: Path) -> None:
    """The metadata of the tokenizer and no tensors."""
    keys = [key for key in file.header.spans if key.startswith("tokenizer.")]
    metadata = {"general.architecture": file.header.architecture}
    write_gguf(path, metadata, (), [file.entry(key) for key in keys])


def _of_span(file: GgufFile, span: LayerSpan) -> Iterator[tuple[str, Place]]:
    for name, place in file.places.items():
        layer = layer_of(name)
        if layer is not None and span.first <= layer < span.end:
            yield name, place


def _renumbered(name: str, span: LayerSpan) -> str:
    layer = layer_of(name)
    if layer is None:
        return name
    return f"blk.{layer - span.first}.{name.split('.', 2)[2]}"


def _metadata(file: GgufFile, span: LayerSpan) -> dict[str, Any]:
    architecture = file.header.architecture
    metadata = {
        "general.architecture": architecture,
        f"{architecture}.block_count": span.end - span.first,
        **_TOKENIZER,
    }
    for key in _KEYS:
        value = file.header.of_architecture(key)
        if value is not None:
            metadata[f"{architecture}.{key}"] = value
    return metadata


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 16


def _vector(file: GgufFile, name: str, span: LayerSpan) -> TensorToWrite:
    place = file.places[name]
    if place.info.kind == F32:
        return _as_it_is(place, _renumbered(name, span))

    def data() -> Iterator[bytes]:
        yield place.values().tobytes()

    return TensorToWrite(_renumbered(name, span), place.info.shape, F32, data)


def _as_it_is(place: Place, name: str) -> TensorToWrite:
    is_matrix = len(place.info.shape) > 1
    if place.info.kind not in AS_READ or (is_matrix and place.info.kind == F32):
        kind = F16 if is_matrix else F32
        data = partial(_in_half, place, {}) if is_matrix else partial(_in_single, place)
        return TensorToWrite(name, place.info.shape, kind, data)

    def bytes_of() -> Iterator[bytes]:
        step = max(1, (8 << 20) // place.row_bytes)
        for first in range(0, place.rows, step):
            yield place.read(first, step).tobytes()

    return TensorToWrite(name, place.info.shape, place.info.kind, bytes_of)


def _in_single(place: Place) -> Iterator[bytes]:
    yield place.values().tobytes()


def _in_half(place: Place, names: dict[Mark, str]) -> Iterator[bytes]:
    first = last = b""
    for number, values in place.blocks():
        half = in_half(values, place.info.name)
        first = first if number else half[0].tobytes()
        last = half[-1].tobytes()
        yield half.tobytes()
    names[(place.rows, place.columns), first, last] = place.info.name


def in_half(values: NDArray[Any], name: str) -> NDArray[Any]:
    """f32 -> f16. Raises StageFailed for what f16 cannot hold."""
    with np.errstate(over="ignore"):
        half = values.astype(np.float16)
    if not np.isfinite(half).all():
        raise StageFailed(
            f"The GGUF's {name} has values that are no numbers, or too large for f16.",
            "Choose the model in another quantisation.",
        )
    return half


def _stand_in(file: GgufFile, name: str, names: dict[Mark, str]) -> TensorToWrite:
    """A few rows that are like no others: the tensor's number and 1."""
    width = file.places[name].columns
    matrix = np.ones((STAND_IN_ROWS, width), np.float16)
    matrix[:, 0] = (EMBEDDING, HEAD).index(name) + 2
    names[mark_of(matrix)] = name

    def data() -> Iterator[bytes]:
        yield matrix.tobytes()

    return TensorToWrite(name, (width, STAND_IN_ROWS), F16, data)
