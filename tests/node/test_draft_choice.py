"""C21: which models may draft for which, proved by what their tokens mean."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from meshinfer.core.ids import Digest, ModelId
from meshinfer.core.model import ModelShape, Unit, UnitKind
from meshinfer.errors import StageFailed
from meshinfer.node.draft_choice import DraftChoice, named_draft, smallest_draft
from meshinfer.weights.description import Description
from meshinfer.weights.folder import ModelFolder

SHAPE = ModelShape(
    model=ModelId("large"),
    digest=Digest("0" * 64),
    units=(Unit(UnitKind.EMBEDDING, -1, 1000, 0, 0), Unit(UnitKind.HEAD, -1, 0, 0, 0)),
    layers=1,
    hidden_size=8,
    vocabulary_size=256,
    context_length=128,
)


def folder(name: str, size: int) -> ModelFolder:
    units = (replace(SHAPE.units[0], weight_bytes=size), SHAPE.units[1])
    shape = replace(SHAPE, model=ModelId(name), units=units)
    description = Description.__new__(Description)
    object.__setattr__(description, "shape", shape)
    return ModelFolder(Path(name), description)


LARGE = folder("large", 1000)


def same(one: ModelFolder) -> Digest:
    """As if names that begin alike had one vocabulary."""
    if one.model.startswith("broken"):
        raise StageFailed("The tokenizer cannot be read.")
    return Digest("o" if one.model.startswith("other") else "s")


@pytest.mark.parametrize(
    ("here", "chosen"),
    [
        ([("small", 300), ("tiny", 100)], "tiny"),
        ([("small", 300), ("other-tiny", 100)], "small"),
        ([("small", 300), ("broken-tiny", 100)], "small"),
        ([("broken-tiny", 100)], None),
        ([("small", 460)], None),
        ([("other", 100)], None),
        ([], None),
    ],
)
def test_the_smallest_that_says_the_same_words(
    here: list[tuple[str, int]], chosen: str | None
) -> None:
    found = smallest_draft(LARGE, [LARGE, *(folder(*one) for one in here)], same)
    assert (found.shape.model if found.shape else None) == chosen
    assert bool(found.why) == (chosen is None)


def test_one_that_is_named() -> None:
    small = folder("small", 700)
    assert named_draft(LARGE, small, same) == DraftChoice(small.shape)
    other = named_draft(LARGE, folder("other", 100), same)
    assert other.shape is None
    assert "another vocabulary" in other.why
    as_large = named_draft(LARGE, folder("as-large", 1000), same)
    assert as_large.shape is None
    assert "not smaller" in as_large.why
