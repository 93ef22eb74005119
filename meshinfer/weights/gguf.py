"""A GGUF file becomes an IR with tokenizers, range by range; torch is not needed.

    WORK/parts/                    layers that are made already, and
    WORK/parts/tokenizer, states   the tokenizer, and where the comparison stands
    WORK/range/                    the range that is being made
    WORK/openvino_model.xml, ...   the result

A GGUF path and a recipe enter; the IR lies in a folder, and what its graph lacks leaves as
ModelFacts. Called by `prepare`, in a process of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from meshinfer.errors import ShardCorrupt, StageFailed, UsageError
from meshinfer.weights.assembly import MODEL_XML, Assembly, LayerSpan, even_spans
from meshinfer.weights.disk import disk_errors, require_room
from meshinfer.weights.end_tokens import end_tokens
from meshinfer.weights.facts import ModelFacts
from meshinfer.weights.gguf_accuracy import Measurement
from meshinfer.weights.gguf_file import GgufFile, open_gguf
from meshinfer.weights.gguf_header import GgufHeader
from meshinfer.weights.gguf_layers import HEAD, Dimensions, check_tensors, layer_of
from meshinfer.weights.gguf_parts import part_of
from meshinfer.weights.gguf_ranges import write_tokenizer
from meshinfer.weights.gguf_reader import TOKENIZER_FILES, read_tokenizer
from meshinfer.weights.gguf_types import is_known, type_name
from meshinfer.weights.progress import Progress, Tell, untold
from meshinfer.weights.recipe import Recipe, WeightFormat

MODEL_FILES = (MODEL_XML, "openvino_model.bin", *TOKENIZER_FILES)
ARCHITECTURES = ("llama", "qwen2", "qwen3")
"""What openvino_genai 2026.4 reads (openvino.genai, gguf_utils/gguf_modeling.cpp)."""

_CONTROL, _USER_DEFINED = 3, 4  # tokenizer.ggml.token_type
_CHOOSE = "Choose another model, or export this one from its original checkpoint."
_FORM = 1
"""Counts changes of what a part holds: parts of an older version are made anew."""
RANGE_BYTES = 256 << 20
"""Reading a range takes three times its bytes."""
_BITS = {WeightFormat.INT4: 4.25, WeightFormat.INT4_ASYM: 4.3, WeightFormat.INT8: 8.1}
_FINE_BITS = 8.1
_READER_FACTOR = 1.4
"""IR over GGUF as the reader has it: 0.97 (Q4_1 of the 135M), 1.15 (Q4_K_M of the 1.5B)."""
_DEFAULT = Recipe()


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
        if not is_known(tensor.kind):
            return f"holds {type_name(tensor.kind)} tensors (such as {tensor.name})"
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


def convert(
    gguf: Path,
    work: Path,
    recipe: Recipe = _DEFAULT,
    progress: Tell = untold,
    range_bytes: int = RANGE_BYTES,
) -> ModelFacts:
    """Write MODEL_FILES into the folder `work`. The original is not touched; of a GGUF in parts,
    `gguf` is any of them. Ranges are of about `range_bytes` as the reader gets them, and of one
    layer at least.

    Blocks. Interrupted, a later call with the same file, folder and recipe goes on where it was.
    Raises StageFailed, ShardCorrupt, DiskFull, UsageError (AWQ).
    """
    if recipe.awq:
        raise UsageError(
            "AWQ is not offered for GGUF: its weights were rounded once already.",
            "Leave it off, or start from the original checkpoint.",
        )
    file = open_gguf(gguf)
    facts = read_facts(file.header)
    sizes = check_tensors(file.header)
    spans = _spans(file, sizes, recipe, range_bytes)
    require_room(work, _room(file, sizes, recipe, len(spans)))
    assembly = Assembly(work, _key(file, recipe), spans)
    tokenizer = _tokenizer(file, assembly.beside / "tokenizer")
    measured = Measurement(file, recipe, tokenizer, assembly.beside / "states")
    parts = _Parts(file, sizes.layers, recipe, work / "range")
    accuracy = _make(parts, spans, assembly, measured, progress)
    for name in TOKENIZER_FILES:
        (tokenizer / name).replace(work / name)
    assembly.finish()
    progress(Progress("convert", file.size, file.size))
    return replace(facts, weights=_words(recipe), accuracy=accuracy)


@dataclass(frozen=True, slots=True)
class _Parts:
    """What every part is made of."""

    file: GgufFile
    layers: int
    recipe: Recipe
    folder: Path

    @property
    def are_changed(self) -> bool:
        return self.recipe.format is not WeightFormat.ORIGINAL


def _make(
    parts: _Parts,
    spans: tuple[LayerSpan, ...],
    assembly: Assembly,
    measured: Measurement,
    progress: Tell,
) -> str:
    """All parts that are missing; the sentence on accuracy, empty where nothing was changed."""
    size = parts.file.size
    for number, span in enumerate(spans):
        progress(Progress("convert", size * number // len(spans), size))
        if span not in assembly.missing:
            continue
        with part_of(parts.file, span, parts.layers, parts.recipe, parts.folder) as part:
            if parts.are_changed:
                measured.add(number, part)
            assembly.add(span, part.model)
            del part
    return str(measured.result(len(spans))) if parts.are_changed else ""


def _spans(
    file: GgufFile, sizes: Dimensions, recipe: Recipe, range_bytes: int
) -> tuple[LayerSpan, ...]:
    as_it_is = recipe.format is WeightFormat.ORIGINAL
    layers = [place for name, place in file.places.items() if layer_of(name) is not None]
    total = sum(place.bytes if as_it_is else 2 * place.rows * place.columns for place in layers)
    return even_spans(sizes.layers, max(1, range_bytes * sizes.layers // total))


def _room(file: GgufFile, sizes: Dimensions, recipe: Recipe, spans: int) -> int:
    """Bytes: the parts and the whole made of them, and one range for the reader, twice."""
    weights = sum(place.rows * place.columns for place in file.places.values())
    end = sizes.hidden * sizes.vocabulary
    layers = weights - end * (1 + (HEAD in file.places))
    bits = _BITS.get(recipe.format, 16)
    fine = max(bits, _FINE_BITS)
    size = int(layers * (bits + fine) / 16 + 2 * end * fine / 8)
    if recipe.format is WeightFormat.ORIGINAL:
        size = int(_READER_FACTOR * file.size)
    return 2 * size + 2 * (2 * layers // spans)


def _key(file: GgufFile, recipe: Recipe) -> str:
    """The metadata and the table of tensors tell files apart that have the same size."""
    with file.path.open("rb") as opened:
        header = opened.read(file.header.data_start)
    return f"gguf {_FORM} {hashlib.sha256(header).hexdigest()} {file.size} {recipe}"


def _tokenizer(file: GgufFile, folder: Path) -> Path:
    """TOKENIZER_FILES in `folder`, made from the metadata alone: the reader's own way would read
    every tensor for it."""
    if all((folder / name).is_file() for name in TOKENIZER_FILES):
        return folder
    with disk_errors(folder.parent):
        folder.mkdir(exist_ok=True)
    gguf = folder / "tokenizer.gguf"
    write_tokenizer(file, gguf)
    read_tokenizer(gguf)
    gguf.unlink()
    return folder


def _words(recipe: Recipe) -> str:
    return "original" if recipe.format is WeightFormat.ORIGINAL else str(recipe)
