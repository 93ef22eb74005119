"""The owner's choice of a store reaches the agent and its weights process alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshinfer.node.settings import Settings
from meshinfer.node.state_folder import StateFolder
from meshinfer.node.stores import StoreChoice
from meshinfer.wire import registry

FOLDER = StateFolder(Path("state"))


def test_stages_lie_in_the_state_folder_unless_told_otherwise() -> None:
    assert StoreChoice.of(Settings(Path("state"), "pc"), FOLDER) == StoreChoice(
        FOLDER.store, (), None
    )
    settings = Settings(
        Path("state"), "pc", store=Path("disk"), read_only_stores=(Path("dvd"),), store_limit=7
    )
    assert StoreChoice.of(settings, FOLDER) == StoreChoice(Path("disk"), (Path("dvd"),), 7)


@pytest.mark.parametrize(
    "choice",
    [
        StoreChoice(Path("a")),
        StoreChoice(Path("Zoë Łukasz 山田") / "My Models #1", (Path("b"), Path("c")), 1 << 40),
    ],
)
def test_a_child_process_opens_the_same_store(choice: StoreChoice) -> None:
    assert StoreChoice.told(choice.tell()) == choice


def test_what_a_child_process_is_told_travels() -> None:
    from meshinfer.core.ids import ModelId
    from meshinfer.core.model import UnitRange
    from meshinfer.wire.child import WeightsJob

    place = StoreChoice(Path("a"), (Path("b"),), 9).tell()
    job = WeightsJob("split", ModelId("m"), "models", place, (UnitRange(0, 2),), "org/repo", "int8")
    packed = registry.pack(job)
    assert registry.unpack(packed, registry.welcome("child"))[0] == job
