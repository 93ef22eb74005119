"""A GGUF file becomes an IR with tokenizers, through openvino_genai's reader; torch is not needed.

A GGUF path enters; the IR lies in a folder, and what its graph lacks leaves as ModelFacts. Called
by `prepare`, in a process of its own.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from meshinfer.core.units import format_bytes
from meshinfer.errors import ShardCorrupt, StageFailed
from meshinfer.weights.cut import openvino_errors
from meshinfer.weights.disk import disk_errors, require_room
from meshinfer.weights.end_tokens import end_tokens
from meshinfer.weights.facts import ModelFacts
from meshinfer.weights.gguf_header import GgufHeader, read_header

MODEL_FILES = (
    "openvino_model.xml",
    "openvino_model.bin",
    "openvino_tokenizer.xml",
    "openvino_tokenizer.bin",
    "openvino_detokenizer.xml",
    "openvino_detokenizer.bin",
)
ARCHITECTURES = ("llama", "qwen2", "qwen3")
"""What openvino_genai 2026.4 reads (openvino.genai, gguf_utils/gguf_modeling.cpp)."""

_UNREADABLE = {6: "Q5_0", 7: "Q5_1", 9: "Q8_1", 11: "Q3_K", 13: "Q5_K", 15: "Q8_K"}
"""ggml types without a conversion in gguf_utils/gguf_quants.cpp; from 16 on IQ and newer ones."""
_FIRST_UNKNOWN, _BF16 = 16, 30
_CONTROL, _USER_DEFINED = 3, 4  # tokenizer.ggml.token_type
_CHOOSE = "Choose another model, or export this one from its original checkpoint."
_ROOM_FACTOR = 1.4
"""IR over GGUF: 0.97 (Q4_1 of the 135M); K-quants other than Q4_K become f16."""


def read_facts(header: GgufHeader) -> ModelFacts:
    """Raises StageFailed for a model that the reader would compute wrongly or not at all: an
    unknown architecture, scaled rotary positions, a sliding window, experts, unread tensors."""
    refuse_unreadable(header)
    metadata = header.metadata
    context = header.of_architecture("context_length")
    if not isinstance(context, int) or context <= 0:
        raise StageFailed("The GGUF does not say how long the model's context is.", _CHOOSE)
    template = str(metadata.get("tokenizer.chat_template", ""))
    keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    named = [metadata.get(f"tokenizer.ggml.{key}") for key in keys]
    stops = end_tokens(named, template, _special_tokens(metadata))
    if not stops:
        raise StageFailed("The GGUF names no token that ends an answer.", _CHOOSE)
    bos = metadata.get("tokenizer.ggml.bos_token_id")
    return ModelFacts(
        header.architecture, context, stops, bos if isinstance(bos, int) else None, template
    )


def refuse_unreadable(header: GgufHeader) -> None:
    """Raises StageFailed instead of letting the reader give wrong numbers."""
    if header.architecture not in ARCHITECTURES:
        raise StageFailed(
            f"OpenVINO's GGUF reader does not know the architecture '{header.architecture}'.",
            f"Choose a model of: {', '.join(ARCHITECTURES)}.",
        )
    obstacle = _rotary_obstacle(header) or _other_obstacle(header)
    if obstacle is not None:
        raise StageFailed(
            f"The GGUF {obstacle}, which OpenVINO's GGUF reader does not read: "
            "the answers would be wrong.",
            _CHOOSE,
        )


def _rotary_obstacle(header: GgufHeader) -> str | None:
    """The reader takes rope.freq_base only."""
    kind = header.of_architecture("rope.scaling.type")
    if kind not in (None, "", "none"):
        return f"scales its rotary positions ({kind})"
    for key in ("rope.scaling.factor", "rope.scale_linear"):
        if header.of_architecture(key) not in (None, 0.0, 1.0):
            return f"scales its rotary positions ({key})"
    for tensor in header.tensors:
        if tensor.name.startswith(("rope_freqs", "rope_factors")):
            return f"scales its rotary positions ({tensor.name})"
    return None


def _other_obstacle(header: GgufHeader) -> str | None:
    if header.of_architecture("expert_count") not in (None, 0):
        return "is a mixture of experts"
    window = header.of_architecture("attention.sliding_window")
    context = header.of_architecture("context_length")
    if isinstance(window, int) and isinstance(context, int) and 0 < window < context:
        return f"attends to a sliding window of {window} tokens"
    for tensor in header.tensors:
        if tensor.kind in _UNREADABLE or (tensor.kind >= _FIRST_UNKNOWN and tensor.kind != _BF16):
            name = _UNREADABLE.get(tensor.kind, f"type {tensor.kind}")
            return f"holds {name} tensors (such as {tensor.name})"
    return None


def _special_tokens(metadata: Mapping[str, Any]) -> dict[str, int]:
    tokens, kinds = (metadata.get(f"tokenizer.ggml.{key}", ()) for key in ("tokens", "token_type"))
    if not (isinstance(tokens, tuple) and isinstance(kinds, tuple)):
        raise ShardCorrupt("The GGUF's vocabulary is no list of tokens.", _CHOOSE)
    return {
        token: number
        for number, (token, kind) in enumerate(zip(tokens, kinds, strict=False))
        if kind in (_CONTROL, _USER_DEFINED)
    }


def convert(gguf: Path, scratch: Path) -> ModelFacts:
    """Write MODEL_FILES into the empty folder `scratch`. The original is not touched. Blocks, and
    takes memory of about twice the file. Raises StageFailed, ShardCorrupt, DiskFull."""
    facts = read_facts(read_header(gguf))
    size = gguf.stat().st_size
    require_room(scratch, int(size * _ROOM_FACTOR))
    source = _beside(gguf, scratch / "model.gguf")
    try:
        _save_ir(source, size)
    finally:
        source.unlink()
    missing = [name for name in MODEL_FILES if not (scratch / name).is_file()]
    if missing:
        raise StageFailed(
            f"openvino_genai did not write {missing[0]}.",
            "Install the version that meshinfer pins.",
        )
    return facts


def _beside(gguf: Path, place: Path) -> Path:
    """The reader writes beside what it reads, so it gets a link (or, on a file system without
    links, a copy) in a folder of ours."""
    try:
        os.link(gguf, place)
    except OSError:
        with disk_errors(place.parent):
            shutil.copyfile(gguf, place)
    return place


def _save_ir(source: Path, size: int) -> None:
    import openvino_genai

    with openvino_errors(f"Reading a GGUF of {format_bytes(size)}"), disk_errors(source.parent):
        openvino_genai.LLMPipeline(str(source), "CPU", enable_save_ov_model=True)
