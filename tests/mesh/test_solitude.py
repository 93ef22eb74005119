"""Why a PC may be alone (J01)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshinfer.core.fleet import Address
from meshinfer.mesh.solitude import Situation, likely_causes

PLAIN = Situation((Address("10.0.0.1", 1),), True, 1, 0, (), 0)


@pytest.mark.parametrize(
    ("situation", "word"),
    [
        pytest.param(replace(PLAIN, refusals=3), "3 attempts were refused", id="refused"),
        pytest.param(replace(PLAIN, failing=("b at 10.0.0.2:1",)), "10.0.0.2:1", id="no answer"),
        pytest.param(replace(PLAIN, other_fleets=1), "other fleet", id="another fleet"),
        pytest.param(replace(PLAIN, mdns=False), "--peer", id="mDNS off"),
        pytest.param(replace(PLAIN, found=0), "5353", id="mDNS finds nobody"),
        pytest.param(replace(PLAIN, listening_on=()), "no address", id="no address"),
        pytest.param(PLAIN, "no other agent", id="nothing known"),
    ],
)
def test_the_cause_is_named(situation: Situation, word: str) -> None:
    (cause,) = likely_causes(situation)
    assert word in cause


def test_several_causes_come_in_order() -> None:
    causes = likely_causes(replace(PLAIN, refusals=1, other_fleets=2, found=0))
    assert len(causes) == 3
    assert "refused" in causes[0]
