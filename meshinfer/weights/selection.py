"""Which files of a repository or folder make a model, and of which kind it is. Pure.

Names and sizes enter, a Selection leaves. Called with the listing of the hub before anything is
fetched, and with that of a folder on this PC.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from meshinfer.core.units import format_bytes
from meshinfer.errors import ModelNotFound, ShardCorrupt, StageFailed, UsageError


class Kind(StrEnum):
    IR = "OpenVINO IR"
    SAFETENSORS = "safetensors"
    GGUF = "GGUF"


@dataclass(frozen=True, slots=True)
class SourceFile:
    """`name` is relative, with "/". The digests are empty where nobody promises one."""

    name: str
    size: int  # bytes
    sha256: str = ""
    git_blob: str = ""  # SHA-1 of a git object, for files outside LFS


@dataclass(frozen=True, slots=True)
class Selection:
    kind: Kind
    files: tuple[SourceFile, ...]  # of a GGUF: one, or all its parts in order

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


TOKENIZER_IR = tuple(
    f"openvino_{part}.{ending}"
    for part in ("tokenizer", "detokenizer")
    for ending in ("xml", "bin")
)
MODEL_IR = ("openvino_model.xml", "openvino_model.bin")
SETTINGS = (
    "config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "chat_template.jinja", "chat_template.json", "openvino_config.json",
)  # fmt: skip
"""Small files that say what a graph does not. Never code."""
_TOKENIZERS = (
    "tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "merges.txt", "spiece.model",
)  # fmt: skip
INDEX = "model.safetensors.index.json"
_WEIGHTS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".msgpack", ".h5")
PART_OF_GGUF = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
_NO_MODEL_GGUF = re.compile(r"(^|[._-])(mmproj|imatrix|lora|adapter)([._-]|$)", re.IGNORECASE)
DEFAULT_QUANTISATION = "q4_k_m"
_SHOWN = 30


def choose(files: Sequence[SourceFile], gguf: str = "", export: bool = False) -> Selection:
    """What is needed of `files`; with `gguf` that one file. An IR is preferred to the checkpoint
    that it was made from, unless weights of another form are asked for (`export`).

    Raises ShardCorrupt (names that leave a folder), StageFailed (a kind that cannot be served),
    UsageError (several GGUF files: they are listed), ModelNotFound (nothing usable).
    """
    here = {file.name: file for file in files}
    for name in here:
        refuse_hostile(name)
    if gguf:
        return Selection(Kind.GGUF, _named(files, gguf))
    has_weights = any(_WEIGHTS.fullmatch(name) for name in here)
    if MODEL_IR[0] in here and not (export and has_weights):
        return Selection(Kind.IR, _existing(here, (*MODEL_IR, *TOKENIZER_IR, *SETTINGS)))
    if has_weights:
        return Selection(Kind.SAFETENSORS, _checkpoint(here))
    _refuse_parts_of_others(here)
    models = _gguf_models(files)
    if not models:
        raise _nothing_usable(here)
    return Selection(Kind.GGUF, _default(models))


def refuse_hostile(name: str) -> None:
    """Raises ShardCorrupt for a name that would be written or read outside its folder."""
    parts = name.split("/")
    drive = len(parts[0]) > 1 and parts[0][1] == ":"
    if drive or "\\" in name or "\0" in name or any(part in ("", ".", "..") for part in parts):
        raise ShardCorrupt(
            f"The file list holds {name[:80]!r}, which leaves the folder: nothing is fetched.",
            "Choose another repository.",
        )


def _existing(here: dict[str, SourceFile], names: Sequence[str]) -> tuple[SourceFile, ...]:
    return tuple(here[name] for name in names if name in here)


def _checkpoint(here: dict[str, SourceFile]) -> tuple[SourceFile, ...]:
    """Shards when there is an index, else the one file: never both, never other precisions."""
    whole = "model.safetensors"
    shards = sorted(name for name in here if _WEIGHTS.fullmatch(name) and name != whole)
    weights = shards if shards and (INDEX in here or whole not in here) else [whole]
    index = (INDEX,) if weights is shards else ()
    return _existing(here, (*SETTINGS[:-1], *_TOKENIZERS, *index, *weights))


def _is_gguf(name: str) -> bool:
    base = name.rsplit("/", 1)[-1]
    return base.lower().endswith(".gguf") and not _NO_MODEL_GGUF.search(base)


GgufModels = dict[str, tuple[SourceFile, ...]]
"""By name, without "-00001-of-00003" where there are parts."""


def _gguf_models(files: Sequence[SourceFile]) -> GgufModels:
    found: GgufModels = {}
    for file in sorted(files, key=lambda one: one.name):
        if _is_gguf(file.name):
            name = PART_OF_GGUF.sub(".gguf", file.name)
            found[name] = (*found.get(name, ()), file)
    return found


def _named(files: Sequence[SourceFile], gguf: str) -> tuple[SourceFile, ...]:
    """By its path or by its name alone; a part stands for all."""
    models = _gguf_models(files)
    wanted = PART_OF_GGUF.sub(".gguf", gguf)
    found = models.get(wanted) or _only(models, lambda name: name.endswith(f"/{wanted}"))
    if found is None:
        raise ModelNotFound(f"There is no file {gguf[:80]!r}.", _list(models))
    return _all_parts(found)


def _default(models: GgufModels) -> tuple[SourceFile, ...]:
    """The only one, or the only one of the usual quantisation."""
    found = _only(models, lambda name: True) or _only(models, _is_usual)
    if found is None:
        raise UsageError("There are several GGUF files.", _list(models))
    return _all_parts(found)


def _is_usual(name: str) -> bool:
    return DEFAULT_QUANTISATION in name.rsplit("/", 1)[-1].lower().replace("-", "_")


def _all_parts(files: tuple[SourceFile, ...]) -> tuple[SourceFile, ...]:
    part = PART_OF_GGUF.search(files[0].name)
    if part is not None and len(files) != int(part[2]):
        raise ShardCorrupt(
            f"Of {files[0].name} only {len(files)} of {int(part[2])} parts are there.",
            "Choose another file, or put all parts in one folder.",
        )
    return files


def _only(models: GgufModels, suits: Callable[[str], bool]) -> tuple[SourceFile, ...] | None:
    found = [files for name, files in models.items() if suits(name)]
    return found[0] if len(found) == 1 else None


def _list(models: GgufModels) -> str:
    if not models:
        return "It holds no GGUF files at all."
    sizes = {name: sum(one.size for one in files) for name, files in models.items()}
    names = sorted(sizes, key=lambda name: sizes[name])
    shown = ", ".join(f"{name} ({format_bytes(sizes[name])})" for name in names[:_SHOWN])
    more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"Choose one with --file: {shown}{more}."


def _refuse_parts_of_others(here: dict[str, SourceFile]) -> None:
    if "openvino_language_model.xml" in here:
        raise StageFailed(
            "This is a model for pictures and text (openvino_language_model.xml), which meshinfer "
            "does not serve.",
            "Choose a text model: one with openvino_model.xml.",
        )
    if "openvino_encoder_model.xml" in here or "openvino_decoder_model.xml" in here:
        raise StageFailed("This is no decoder of text alone.", "Choose a text generation model.")
    if "adapter_model.safetensors" in here:
        raise StageFailed(
            "This is an adapter (LoRA), no whole model.", "Choose one that is merged with its base."
        )


def _nothing_usable(here: dict[str, SourceFile]) -> ModelNotFound:
    others = sorted(name for name in here if name.endswith(".safetensors"))
    if others:
        return ModelNotFound(
            f"There are weights of an unknown layout ({others[0]}), not model.safetensors.",
            "Choose a repository in the layout of transformers, an OpenVINO IR or a GGUF.",
        )
    if any(name.endswith(_PICKLES) for name in here):
        return ModelNotFound(
            "There are only weights in pickle files, which may run code and are never read.",
            "Choose a repository with safetensors, an OpenVINO IR or a GGUF.",
        )
    return ModelNotFound(
        "There is no model: no OpenVINO IR, no safetensors and no GGUF.",
        "Choose another repository or folder.",
    )
