"""Even cuts at layers and inside them, and borders that a person names."""

from __future__ import annotations

import pytest

from meshinfer.core.model import Unit, UnitKind
from meshinfer.errors import UsageError
from meshinfer.node.even_cuts import cut_at, even_cut, parse_borders

A, F, B = UnitKind.ATTENTION, UnitKind.FEED_FORWARD, UnitKind.BLOCK


def units(layers: int, *kinds: UnitKind) -> list[Unit]:
    """An embedding, layers of these units, a head."""
    inner = [Unit(kind, layer, 1, 0, 4) for layer in range(layers) for kind in kinds]
    return [
        Unit(UnitKind.EMBEDDING, 0, 1, 0, 4),
        *inner,
        Unit(UnitKind.HEAD, layers, 1, 0, 4),
    ]


def bounds(model: list[Unit], stages: int, inside_layer: bool) -> list[int]:
    return [part.first for part in even_cut(model, stages, inside_layer)][1:]


@pytest.mark.parametrize(
    ("model", "stages", "inside", "expected"),
    [
        (units(30, A, F), 2, False, [31]),
        (units(30, A, F), 2, True, [30]),
        (units(30, A, F), 5, True, [12, 24, 36, 48]),
        (units(3, A, F), 3, True, [2, 4]),
        (units(3, A, F), 5, False, [1, 3, 5, 7]),
        (units(4, B), 2, False, [3]),
        (units(4, B), 6, False, [1, 2, 3, 4, 5]),
        (units(2, A, F, F), 2, False, [4]),
        (units(2, A, F, F), 5, True, [2, 3, 5, 6]),
    ],
)
def test_cuts_are_even_and_lie_where_they_should(
    model: list[Unit], stages: int, inside: bool, expected: list[int]
) -> None:
    assert bounds(model, stages, inside) == expected


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("stages", range(2, 8))
def test_cuts_cover_every_unit_once(stages: int, inside: bool) -> None:
    cut = even_cut(units(9, A, F), stages, inside)
    assert [unit for part in cut for unit in range(part.first, part.end)] == list(range(20))
    assert all(part.first % 2 != inside for part in cut[1:])


@pytest.mark.parametrize(
    ("model", "stages", "inside"),
    [
        (units(3, A, F), 1, False),
        (units(3, A, F), 6, False),
        (units(3, A, F), 5, True),
        (units(3, B), 2, True),
    ],
)
def test_impossible_cuts_are_refused(model: list[Unit], stages: int, inside: bool) -> None:
    with pytest.raises(UsageError, match="cannot be cut evenly"):
        even_cut(model, stages, inside)


@pytest.mark.parametrize("borders", [(0, 9, 20, 62), (9, 20), (0, 9, 20), (9, 20, 62)])
def test_the_ends_of_the_model_may_be_left_out(borders: tuple[int, ...]) -> None:
    assert [(one.first, one.end) for one in cut_at(borders, 62)] == [(0, 9), (9, 20), (20, 62)]


@pytest.mark.parametrize("borders", [(9, 9), (20, 9), (0, 9, 63), (-1, 9)])
def test_borders_that_are_no_cut_are_refused(borders: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="no cut of a model of 62 units"):
        cut_at(borders, 62)


def test_borders_are_read() -> None:
    assert parse_borders("0:9:20:62") == (0, 9, 20, 62)
    assert parse_borders("7") == (7,)


@pytest.mark.parametrize("text", ["", "9:", "a:b", "1.5", "-3:4", "9 20", "99999999"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no cut"):
        parse_borders(text)
