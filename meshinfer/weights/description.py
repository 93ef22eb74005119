"""`description.json`: what a model folder says about itself, as values and as JSON.

Written when a model is prepared, read whenever a folder is opened.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from meshinfer.core.ids import Digest, ModelId
from meshinfer.core.model import ModelShape, SharedBytes, Unit, UnitKind
from meshinfer.errors import ShardCorrupt
from meshinfer.weights.plain_name import objection

DESCRIPTION_FILE = "description.json"
FORMAT = 2
_NOT_IN_THE_FIRST = {"weights": "original", "accuracy": "", "recipe": "", "revision": ""}
"""Format 1 had no such fields, nor what units share: all it could hold was a GGUF as OpenVINO reads
it. Such a folder can be served; the next pull makes it anew."""


@dataclass(frozen=True, slots=True)
class ModelFile:
    name: str
    size: int  # bytes
    digest: Digest


@dataclass(frozen=True, slots=True)
class Description:
    """Everything about a model but its bytes. `shape.digest` covers names and bytes of `files`."""

    shape: ModelShape
    stop_tokens: tuple[int, ...]
    bos: int | None
    architecture: str
    source: str  # where the bytes came from: `origin.label`
    openvino: str  # version that wrote the IR
    chat_template: str
    created: int  # seconds since 1970
    files: tuple[ModelFile, ...]
    weights: str = "original"  # how they are kept, for people
    accuracy: str = ""  # what that cost against the source, or nothing where it was not measured
    recipe: str = "original"  # the form that was asked for; empty in the first format
    revision: str = ""  # commit of the hub's repository


def digest_over(files: tuple[ModelFile, ...]) -> Digest:
    """One digest for all files of a model, whatever their order on the disk."""
    lines = sorted(f"{file.name}\0{file.size}\0{file.digest}\n" for file in files)
    return Digest(hashlib.sha256("".join(lines).encode()).hexdigest())


def to_json(description: Description) -> str:
    content = {"format": FORMAT, **asdict(description)}
    return json.dumps(content, indent=1)


def from_json(text: str) -> Description:
    """Raises ShardCorrupt: no description, another format, or names that leave the folder."""
    try:
        content: dict[str, Any] = json.loads(text)
        written = content.pop("format")
        if written == 1:
            content |= _NOT_IN_THE_FIRST
        elif written != FORMAT:
            raise ShardCorrupt(
                "The model was prepared by another version of meshinfer.", "Pull it again."
            )
        files = tuple(ModelFile(**one) for one in content.pop("files"))
        shape = _shape(content.pop("shape"))
        stops = tuple(content.pop("stop_tokens"))
        missing = _NOT_IN_THE_FIRST.keys() - content.keys()
        if missing:
            raise KeyError(min(missing))
        description = Description(shape=shape, stop_tokens=stops, files=files, **content)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ShardCorrupt("A model's description cannot be read.", "Pull it again.") from error
    if any(objection(file.name) for file in files) or digest_over(files) != shape.digest:
        raise ShardCorrupt("A model's description was altered.", "Pull it again.")
    return description


def _shape(content: dict[str, Any]) -> ModelShape:
    units = tuple(_unit(unit) for unit in content.pop("units"))
    return ModelShape(
        model=ModelId(content.pop("model")),
        digest=Digest(content.pop("digest")),
        units=units,
        **content,
    )


def _unit(content: dict[str, Any]) -> Unit:
    shared = tuple(SharedBytes(**one) for one in content.pop("shared", ()))
    return Unit(**{**content, "kind": UnitKind(content["kind"]), "shared": shared})
