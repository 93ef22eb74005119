"""Where a draft goes, and that it never takes what the large model has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshinfer.core.ids import NodeId
from meshinfer.core.model import UnitRange
from meshinfer.core.plan import DraftPlan, StagePlan
from meshinfer.mesh.draft_place import NoDraft, draft_line, place_draft
from tests.mesh.fleets import MB, room, shape

DRAFT = shape(2, layer_bytes=40 * MB, cache_per_token=1000)  # 80 MB, and 4 MB of cache for 2000
CACHE_TOKENS = 2000


def stage(node: str, weights: int) -> StagePlan:
    return StagePlan(NodeId(node), "CPU", UnitRange(0, 1), 0, 0, weights * MB, 0, ())


def placed(sizes: dict[str, int], stages: dict[str, int], leader: str) -> DraftPlan | NoDraft:
    """`sizes` and `stages` in MB."""
    rooms = [room(size * MB, name) for name, size in sizes.items()]
    own = [stage(name, weights) for name, weights in stages.items()]
    return place_draft(DRAFT, rooms, own, NodeId(leader), CACHE_TOKENS)


@pytest.mark.parametrize(
    ("sizes", "stages", "leader", "expected"),
    [
        ({"a": 200, "b": 900}, {"a": 100, "b": 100}, "a", "a"),
        ({"a": 150, "b": 900, "c": 80}, {"a": 100, "b": 100}, "a", "b"),
        ({"a": 150, "b": 900, "c": 100}, {"a": 100, "b": 100}, "c", "c"),
        ({"a": 150, "b": 900, "c": 110}, {"a": 100, "b": 100}, "a", "c"),
        ({"a": 150, "b": 300, "c": 310}, {"a": 100, "b": 100, "c": 100}, "a", "c"),
        ({"a": 183, "b": 183}, {"a": 100, "b": 100}, "b", None),
    ],
    ids=["leader", "most room", "leader alone", "no stage first", "most left", "nowhere"],
)
def test_places(
    sizes: dict[str, int], stages: dict[str, int], leader: str, expected: str | None
) -> None:
    found = placed(sizes, stages, leader)
    assert (found.stage.node if isinstance(found, DraftPlan) else None) == expected


def test_a_draft_is_a_whole_model() -> None:
    found = placed({"a": 90}, {}, "a")
    assert isinstance(found, DraftPlan)
    assert found.stage.units == UnitRange(0, len(DRAFT.units))
    assert (found.stage.weight_bytes, found.stage.cache_bytes) == (80 * MB, 2 * 1000 * 2000)
    assert (found.context_length, found.cache_tokens) == (CACHE_TOKENS, CACHE_TOKENS)
    assert draft_line(found, "anna") == "toy drafts on anna (84 MB)."


def test_why_there_is_none() -> None:
    found = placed({"a": 150, "b": 90}, {"a": 100, "b": 80}, "a")
    assert isinstance(found, NoDraft)
    assert draft_line(found, "") == "No draft model: toy takes 84 MB, and pc-a has 50 MB left."
    empty = placed({}, {}, "a")
    assert draft_line(empty, "") == "No draft model: no PC has a device for toy."


@given(
    sizes=st.lists(st.integers(0, 400), min_size=1, max_size=5),
    weights=st.lists(st.integers(1, 300), max_size=5),
    leader=st.integers(0, 5),
)
def test_all_that_a_pc_holds_fits(sizes: list[int], weights: list[int], leader: int) -> None:
    names = "abcdef"
    held = {names[one]: weight for one, weight in enumerate(weights)}
    found = placed({names[one]: size for one, size in enumerate(sizes)}, held, names[leader])
    free = [size - held.get(names[one], 0) for one, size in enumerate(sizes)]
    assert isinstance(found, DraftPlan) == (max(free) >= 84)
    if isinstance(found, DraftPlan):
        assert free[names.index(found.stage.node)] >= 84
        if leader < len(sizes) and free[leader] >= 84 and names[leader] not in held:
            assert found.stage.node == names[leader]
