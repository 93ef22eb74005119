"""What the export and its child process tell each other: one JSON object a line.

The parent writes one Order and keeps the pipe open; the child ends when it closes. The child writes
any number of News.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from meshinfer.errors import MeshInferError, from_code
from meshinfer.weights.assembly import LayerSpan
from meshinfer.weights.facts import ModelFacts
from meshinfer.weights.recipe import Recipe, WeightFormat


@dataclass(frozen=True, slots=True)
class Order:
    """Make `wanted` of the parts `spans`; write the tokenizer first if asked to."""

    checkpoint: Path
    work: Path
    recipe: Recipe
    key: str
    spans: tuple[LayerSpan, ...]
    wanted: tuple[LayerSpan, ...]
    with_tokenizer: bool
    most_memory: int  # bytes: a child that keeps more between two parts ends, and another goes on

    def to_line(self) -> str:
        content = asdict(self)
        content.update(checkpoint=str(self.checkpoint), work=str(self.work))
        return json.dumps(content)

    @classmethod
    def from_line(cls, line: str) -> Order:
        content: dict[str, Any] = json.loads(line)
        recipe = content["recipe"]
        content.update(
            checkpoint=Path(content["checkpoint"]),
            work=Path(content["work"]),
            recipe=Recipe(WeightFormat(recipe["format"]), recipe["group_size"], recipe["awq"]),
            spans=tuple(LayerSpan(**one) for one in content["spans"]),
            wanted=tuple(LayerSpan(**one) for one in content["wanted"]),
        )
        return cls(**content)


@dataclass(frozen=True, slots=True)
class News:
    """One of: a part was made, the facts are known, it failed."""

    made: LayerSpan | None = None
    facts: ModelFacts | None = None
    error: MeshInferError | None = None

    def to_line(self) -> str:
        content: dict[str, Any] = {}
        if self.made is not None:
            content["made"] = asdict(self.made)
        if self.facts is not None:
            content["facts"] = asdict(self.facts)
        if self.error is not None:
            error = self.error
            content["error"] = [error.code, error.cause, error.remedy]
        return json.dumps(content)

    @classmethod
    def from_line(cls, line: str) -> News:
        content: dict[str, Any] = json.loads(line)
        made, facts, error = (content.get(name) for name in ("made", "facts", "error"))
        if facts is not None:
            facts["stop_tokens"] = tuple(facts["stop_tokens"])
        return cls(
            LayerSpan(**made) if made is not None else None,
            ModelFacts(**facts) if facts is not None else None,
            from_code(*error) if error is not None else None,
        )
