"""Why a link is over, in words: the first reason stays, and nothing unprintable is passed on."""

from __future__ import annotations

import pytest

from meshinfer.core.ids import NodeId
from meshinfer.errors import PeerLost
from meshinfer.link.ending import Ending


def ending() -> Ending:
    return Ending("mesh", NodeId("abcdefgh" + "x" * 44), "10.0.0.1:7")


def test_a_link_that_lives_may_be_used() -> None:
    ending().check()


@pytest.mark.parametrize(
    ("detail", "said"),
    [
        ("", "The mesh link with PC abcdefgh at 10.0.0.1:7 ended."),
        ("reset\x1b[2J", "The mesh link with PC abcdefgh at 10.0.0.1:7 ended: reset[2J"),
        ("y" * 999, "The mesh link with PC abcdefgh at 10.0.0.1:7 ended: " + "y" * 200),
    ],
)
def test_a_lost_link_says_with_whom_and_why(detail: str, said: str) -> None:
    over = ending()
    assert over.lost(detail).cause == said
    with pytest.raises(PeerLost) as found:
        over.check()
    assert found.value.cause == said


def test_the_first_reason_stays() -> None:
    over = ending()
    over.closed_here("the plan ended")
    assert over.lost("reset").cause == "This PC closed the link. the plan ended"
    over.closed_here("again")
    assert over.lost("").cause == "This PC closed the link. the plan ended"


def test_a_violation_names_the_channel_and_does_not_end_the_link_by_itself() -> None:
    over = ending()
    broken = over.violation("a text message")
    assert broken.cause == "PC abcdefgh at 10.0.0.1:7 broke the rules of mesh: a text message"
    over.check()
