"""Which models of a folder draft: what is fetched for it, when, and what is said of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshinfer.core.ids import ModelId
from meshinfer.errors import TimedOut
from meshinfer.node.draft_choice import DraftChoice
from meshinfer.node.draft_library import DraftLibrary
from meshinfer.node.term_tools import Tell


class Hub:
    """A source of models that does not answer."""

    def __init__(self) -> None:
        self.asked: list[ModelId] = []

    async def fetch(self, model: ModelId, tell: Tell) -> None:
        self.asked.append(model)
        tell("download", 1, 4)
        raise TimedOut("The hub does not answer.")


def heard() -> tuple[list[tuple[str, int, int]], Tell]:
    told: list[tuple[str, int, int]] = []
    return told, lambda *news: told.append(news)


@pytest.mark.parametrize(("wanted", "speculates"), [("none", True), ("off", False)])
async def test_nobody_asked_for_one(tmp_path: Path, wanted: str, speculates: bool) -> None:
    hub = Hub()
    library = DraftLibrary(tmp_path, wanted, hub.fetch)
    assert await library.choose(ModelId("large"), heard()[1]) == DraftChoice(None)
    assert library.speculates is speculates
    assert not hub.asked


async def test_nothing_is_fetched_by_itself(tmp_path: Path) -> None:
    hub = Hub()
    found = await DraftLibrary(tmp_path, "auto", hub.fetch).choose(ModelId("large"), heard()[1])
    assert found.shape is None
    assert "could be compared with large" in found.why
    assert not hub.asked


async def test_a_named_one_is_fetched_once_and_its_failure_told(tmp_path: Path) -> None:
    """A plan that follows another at once does not wait for the same download again."""
    hub, (told, tell) = Hub(), heard()
    library = DraftLibrary(tmp_path, "small", hub.fetch)
    first = await library.choose(ModelId("large"), tell)
    assert first.shape is None
    assert "small, to draft for large, cannot be had" in first.why
    assert "does not answer" in first.why
    assert told == [("small: download", 1, 4)]
    second = await library.choose(ModelId("large"), tell)
    assert second.shape is None
    assert second.why
    assert hub.asked == [ModelId("small")]
