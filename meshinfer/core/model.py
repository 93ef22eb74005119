"""What a planner needs to know of a model, and what a cut makes of it.

A model is a row of *units* with a cut point between neighbours: the embedding, then an attention
and a feed-forward unit for every layer, then the head. A stage is a half-open range of units, so a
plan can balance to half a layer and place the head by itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from meshinfer.core.ids import Digest, ModelId

_F32_BYTES = 4

ATTENTION_BYTES = 5_000_000
"""What a layer costs a step beside its weights (norms, rotary part, cache, starting kernels), in
bytes of weights that could be read meanwhile.

Measured on one core of an x86 server, OpenVINO 2026.4.1, one row: a layer of SmolLM2-135M takes
0.31 ms and its head 0.041 ms a MB, of Qwen2.5-Coder 1.5B 2.1 ms and 0.056 ms a MB: 4 and 10 MB a
layer more than its weights. With 16 rows it is 1 and 11.
"""


class UnitKind(StrEnum):
    EMBEDDING = "embedding"
    ATTENTION = "attention"
    FEED_FORWARD = "feed_forward"
    HEAD = "head"
    BLOCK = "block"  # a part that no known kind describes


@dataclass(frozen=True, slots=True)
class SharedBytes:
    """What a unit has in common with an earlier one: counted in both, held once by a stage that has
    both. `unit` is the nearest earlier one that has it."""

    unit: int
    weight_bytes: int
    cache_bytes_per_token: int


@dataclass(frozen=True, slots=True)
class Unit:
    """The part of a model between two neighbouring cut points."""

    kind: UnitKind
    layer: int  # decoder layer it belongs to; the embedding has 0, the head the layer count
    weight_bytes: int  # constants that only this unit reads, plus its copy of shared ones
    cache_bytes_per_token: int  # KV cache at f32; 0 outside attention
    crossing_bytes_per_token: int  # activations that leave this unit for the next, at f32
    shared: tuple[SharedBytes, ...] = ()  # a tied embedding, a cache that several layers read

    @property
    def crossing_width(self) -> int:
        """Numbers a token that leave this unit: the hidden state and whatever crosses beside it;
        for the head the logits."""
        return self.crossing_bytes_per_token // _F32_BYTES

    @property
    def step_bytes(self) -> int:
        """What this unit costs a step that decodes, in bytes of weights to read: an embedding is
        only looked up, also when its matrix is the head's, which reads all of it."""
        if self.kind is UnitKind.EMBEDDING:
            return 0
        attends = self.kind is UnitKind.ATTENTION or self.cache_bytes_per_token > 0
        return self.weight_bytes + (ATTENTION_BYTES if attends else 0)


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
        """Bytes of weights that a stage with these units holds. What several of them read is held
        once, so this is no plain sum."""
        twice = sum(one.weight_bytes for one in self._shared_within(part))
        return sum(unit.weight_bytes for unit in self.units[part.first : part.end]) - twice

    def cache_bytes_per_token(self, part: UnitRange) -> int:
        """KV bytes a cached token costs in these units, at f32. A cache that several of them read
        is held once."""
        twice = sum(one.cache_bytes_per_token for one in self._shared_within(part))
        return sum(unit.cache_bytes_per_token for unit in self.units[part.first : part.end]) - twice

    def input_width(self, part: UnitRange) -> int:
        """Numbers a token that a stage with these units takes; 0 where it takes token ids."""
        return self.units[part.first - 1].crossing_width if part.first else 0

    def _shared_within(self, part: UnitRange) -> Iterator[SharedBytes]:
        for unit in self.units[part.first : part.end]:
            yield from (one for one in unit.shared if one.unit >= part.first)

    def layer_span(self, part: UnitRange) -> tuple[int, int]:
        """First and last decoder layer (inclusive) that a stage touches, for people to read."""
        last_layer = max(self.layers - 1, 0)
        touched = [min(unit.layer, last_layer) for unit in self.units[part.first : part.end]]
        return touched[0], touched[-1]


PIECE_BYTES = 1 << 20
"""1 MiB: one websocket message; encrypting one holds the event loop for under 2 ms."""

_DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a manifest: its segments joined, each of them the pieces of a row joined.

    A segment is cut into pieces by itself (PIECE_BYTES each, the last may be shorter), so equal
    segments of two files have equal pieces wherever they lie. Nothing here is checked: a manifest
    that comes from elsewhere may say anything until `weights.manifest` has looked at it.
    """

    name: str  # plain file name, no separators
    segments: tuple[int, ...]  # bytes of each; none is empty
    digests: bytes  # SHA-256 of every piece, 32 bytes each, one behind the other

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(self.segments)

    @property
    def pieces(self) -> tuple[Digest, ...]:
        """The digests as names."""
        text = self.digests.hex()
        step = 2 * _DIGEST_BYTES
        return tuple(Digest(text[start : start + step]) for start in range(0, len(text), step))

    @property
    def digest(self) -> Digest:
        """Of the file: SHA-256 over the sizes of its segments and the digests of its pieces."""
        sizes = ",".join(map(str, self.segments))
        return Digest(hashlib.sha256(f"{sizes}\n".encode() + self.digests).hexdigest())


def piece_count(segments: Sequence[int]) -> int:
    """How many pieces segments of these sizes have."""
    return sum(-(-size // PIECE_BYTES) for size in segments)


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
