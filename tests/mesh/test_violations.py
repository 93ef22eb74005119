"""Counting what PCs do wrong, without filling the log."""

from __future__ import annotations

import logging

import pytest

from meshinfer.core.ids import NodeId
from meshinfer.mesh.violations import ViolationBook

BAD, WORSE = NodeId("bad"), NodeId("worse")


def test_every_violation_counts_and_few_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    book = ViolationBook()
    with caplog.at_level(logging.WARNING):
        book.note(BAD, "it lied")
        for _ in range(250):
            book.note(WORSE, "it lied again")
    assert book.counts() == {BAD: 1, WORSE: 250}
    assert len(caplog.records) == 1 + 3  # the first, the hundredth and the two hundredth


def test_the_counts_are_the_callers_own() -> None:
    book = ViolationBook()
    book.note(BAD, "it lied")
    book.counts().clear()
    assert book.counts() == {BAD: 1}
