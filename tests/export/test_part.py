from __future__ import annotations

import pytest

from meshinfer.core.model import UnitKind, UnitRange
from meshinfer.errors import StageFailed
from meshinfer.weights.assembly import LayerSpan
from meshinfer.weights.export.part import outer_units

E, A, F, H, B = (
    UnitKind.EMBEDDING,
    UnitKind.ATTENTION,
    UnitKind.FEED_FORWARD,
    UnitKind.HEAD,
    UnitKind.BLOCK,
)


@pytest.mark.parametrize(
    ("kinds", "span", "expected"),
    [
        ((E, A, F, H), LayerSpan(0, 1), UnitRange(0, 3)),
        ((E, A, F, A, F, H), LayerSpan(1, 3), UnitRange(1, 5)),
        ((E, A, F, H), LayerSpan(4, 5), UnitRange(1, 4)),
        ((E, A, F, H), LayerSpan(0, 5), UnitRange(0, 4)),
        ((E, B, B, H), LayerSpan(1, 3), UnitRange(1, 3)),
    ],
)
def test_stand_ins_are_left_out(
    kinds: tuple[UnitKind, ...], span: LayerSpan, expected: UnitRange
) -> None:
    assert outer_units(kinds, span, layers=5) == expected


@pytest.mark.parametrize("kinds", [(A, F, H), (E, A, F), (E, H)])
def test_a_model_without_ends_is_refused(kinds: tuple[UnitKind, ...]) -> None:
    with pytest.raises(StageFailed, match="1-2 cannot be taken out"):
        outer_units(kinds, LayerSpan(1, 2), layers=5)
