"""What a planner needs to know of a model, and what a cut makes of it.

A model is a row of *units* with a cut point between neighbours: the embedding, then an attention
and a feed-forward unit for every layer, then the head. A stage is a half-open range of units, so a
plan can balance to half a layer and place the head by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from meshinfer.core.ids import Digest, ModelId


class UnitKind(StrEnum):
    EMBEDDING = "embedding"
    ATTENTION = "attention"
    FEED_FORWARD = "feed_forward"
    HEAD = "head"
    BLOCK = "block"  # a part that no known kind describes


@dataclass(frozen=True, slots=True)
class Unit:
    """The part of a model between two neighbouring cut points."""

    kind: UnitKind
    layer: int  # decoder layer it belongs to; the embedding has 0, the head the layer count
    weight_bytes: int  # constants that only this unit reads, plus its copy of shared ones
    cache_bytes_per_token: int  # KV cache at f32; 0 outside attention
    crossing_bytes_per_token: int  # activation that leaves this unit for the next, at f32


@dataclass(frozen=True, slots=True)
class UnitRange:
    """Half-open range of units: `first` is in, `end` is not."""

    first: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.first < self.end:
            raise ValueError(f"empty or negative range [{self.first}, {self.end})")

    def __len__(self) -> int:
        return self.end - self.first

    def __str__(self) -> str:
        return f"[{self.first},{self.end})"


@dataclass(frozen=True, slots=True)
class ModelShape:
    """One model, as the planner and the ring see it."""

    model: ModelId
    digest: Digest  # of the whole model's manifest
    units: tuple[Unit, ...]
    layers: int
    hidden_size: int
    vocabulary_size: int
    context_length: int  # tokens

    def weight_bytes(self, part: UnitRange) -> int:
        """Bytes of weights that a stage with these units holds."""
        return sum(unit.weight_bytes for unit in self.units[part.first : part.end])

    def cache_bytes_per_token(self, part: UnitRange) -> int:
        """KV bytes a cached token costs in these units, at f32."""
        return sum(unit.cache_bytes_per_token for unit in self.units[part.first : part.end])

    def layer_span(self, part: UnitRange) -> tuple[int, int]:
        """First and last decoder layer (inclusive) that a stage touches, for people to read."""
        last_layer = max(self.layers - 1, 0)
        touched = [min(unit.layer, last_layer) for unit in self.units[part.first : part.end]]
        return touched[0], touched[-1]


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a manifest: its bytes are the pieces joined in order."""

    name: str  # plain file name, no separators
    size: int  # bytes
    digest: Digest
    pieces: tuple[Digest, ...]  # SHA-256 of each PIECE_BYTES-long part; the last may be shorter


PIECE_BYTES = 1 << 20
"""1 MiB: one websocket message; encrypting one holds the event loop for under 2 ms."""


@dataclass(frozen=True, slots=True)
class StageManifest:
    """Everything that a PC checks before it loads a stage.

    The IR is neutral to precision: bf16 ports are put on when it is loaded, so that one shard
    serves both.
    """

    model: ModelId
    model_digest: Digest
    units: UnitRange
    openvino: str  # version that wrote the IR
    files: tuple[StoredFile, ...]
    digest: Digest  # SHA-256 over all of the above

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)
