"""A folder or file that should hold a model: what it is, and whether it is whole.

A path on this PC enters, a Checkpoint leaves. Called by `prepare` before anything is read from it,
whether it lay here already or was fetched.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshinfer.errors import ModelNotFound, ShardCorrupt, StageFailed
from meshinfer.weights.safetensors_header import read_header
from meshinfer.weights.selection import INDEX, Kind, SourceFile, choose, refuse_hostile

CONFIG = "config.json"
_MOST_JSON_BYTES = 64 << 20
_AGAIN = "Fetch the checkpoint again."

_QUANTISED = {
    "gptq": "GPTQ", "awq": "AWQ", "bitsandbytes": "bitsandbytes", "fp8": "FP8", "fbgemm_fp8": "FP8",
    "compressed-tensors": "compressed-tensors", "mxfp4": "MXFP4", "hqq": "HQQ", "eetq": "EETQ",
    "aqlm": "AQLM", "quanto": "Quanto", "torchao": "TorchAO", "bitnet": "BitNet",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Checkpoint:
    kind: Kind
    path: Path  # a folder, or the GGUF file
    files: tuple[SourceFile, ...]  # relative to the folder


def look(path: Path, gguf: str = "", export: bool = False) -> Checkpoint:
    """What lies at `path`; see `selection.choose` for the rest. Raises ModelNotFound, UsageError,
    StageFailed, ShardCorrupt."""
    try:
        if path.is_file():
            return _single(path)
        files = _listing(path)
    except OSError as error:
        raise ModelNotFound(f"{path} cannot be read: {error.strerror}.") from error
    chosen = choose(files, gguf, export)
    if chosen.kind is Kind.GGUF:
        return Checkpoint(Kind.GGUF, path / chosen.files[0].name, chosen.files)
    return Checkpoint(chosen.kind, path, chosen.files)


def check(checkpoint: Checkpoint) -> None:
    """Raises ShardCorrupt (damaged or missing files), StageFailed (weights of a kind that is not
    read). What the layers are is for the exporter to judge."""
    if checkpoint.kind is not Kind.SAFETENSORS:
        return  # the readers of IR and GGUF look for themselves
    config = read_config(checkpoint.path)
    _refuse_quantised(config)
    names = {file.name for file in checkpoint.files}
    if INDEX in names:
        expected = _indexed(checkpoint.path)
    else:
        expected = {file: set() for file in sorted(names) if file.endswith(".safetensors")}
        if len(expected) > 1:
            raise ShardCorrupt(f"{INDEX} is missing: it says which tensor lies where.", _AGAIN)
    for file, tensors in expected.items():
        _check_weights(checkpoint.path / file, tensors)


def read_config(folder: Path) -> dict[str, Any]:
    """`config.json`. Raises ShardCorrupt."""
    return read_json(folder / CONFIG)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object of bounded size. Raises ShardCorrupt."""
    try:
        if path.stat().st_size > _MOST_JSON_BYTES:
            raise ShardCorrupt(f"{path.name} is too large to be true.", _AGAIN)
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ShardCorrupt(f"{path.name} is missing.", _AGAIN) from error
    except (OSError, ValueError, RecursionError) as error:
        raise ShardCorrupt(f"{path.name} cannot be read.", _AGAIN) from error
    if not isinstance(content, dict):
        raise ShardCorrupt(f"{path.name} holds no JSON object.", _AGAIN)
    return content


def _single(path: Path) -> Checkpoint:
    file = SourceFile(path.name, path.stat().st_size)
    if path.suffix.lower() == ".gguf":
        return Checkpoint(Kind.GGUF, path, (file,))
    if path.suffix.lower() in (".safetensors", ".xml"):
        raise ModelNotFound(f"{path.name} alone is no model.", "Give the folder that holds it.")
    raise ModelNotFound(f"{path.name} is no .gguf file.", "Give a .gguf file or a folder.")


def _listing(folder: Path) -> list[SourceFile]:
    if not folder.is_dir():
        raise ModelNotFound(f"There is no file or folder {folder}.", "Check its name.")
    return [
        SourceFile(path.name, path.stat().st_size)
        for path in sorted(folder.iterdir())
        if path.is_file()
    ]


def _refuse_quantised(config: Mapping[str, Any]) -> None:
    settings = config.get("quantization_config") or config.get("compression_config")
    if not isinstance(settings, Mapping):
        return
    method = str(settings.get("quant_method") or "")
    if settings.get("load_in_4bit") or settings.get("load_in_8bit"):
        method = "bitsandbytes"
    name = _QUANTISED.get(method.lower(), method[:40] or "an unnamed method")
    raise StageFailed(
        f"The checkpoint's weights are quantised already ({name}), which the exporter does not "
        "read.",
        "Choose the original checkpoint (F16 or BF16), a GGUF or an OpenVINO IR of this model.",
    )


def _indexed(folder: Path) -> dict[str, set[str]]:
    """The tensors that each shard must hold."""
    table = read_json(folder / INDEX).get("weight_map")
    if not isinstance(table, dict) or not table:
        raise ShardCorrupt(f"{INDEX} names no tensors.", _AGAIN)
    expected: dict[str, set[str]] = {}
    for tensor, file in sorted(table.items()):
        if not isinstance(file, str) or not file.endswith(".safetensors"):
            raise ShardCorrupt(f"{INDEX} names no safetensors file for {tensor[:80]}.", _AGAIN)
        refuse_hostile(file)
        expected.setdefault(file, set()).add(tensor)
    missing = [file for file in sorted(expected) if not (folder / file).is_file()]
    if missing:
        raise ShardCorrupt(
            f"{len(missing)} of {len(expected)} files of weights are missing: "
            f"{', '.join(missing[:3])}{' ...' if len(missing) > 3 else ''}.",
            _AGAIN,
        )
    return expected


def _check_weights(path: Path, tensors: set[str]) -> None:
    if not path.is_file():
        raise ShardCorrupt(f"{path.name} is missing.", _AGAIN)
    present = {tensor.name for tensor in read_header(path).tensors}
    absent = tensors - present
    if absent:
        raise ShardCorrupt(
            f"{path.name} does not hold {min(absent)[:80]}, which the index says.", _AGAIN
        )
