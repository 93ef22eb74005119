"""What the log says of a bug."""

from __future__ import annotations

from meshinfer.api.crash import crash_report

SECRET = "CANARY77"


def caught() -> BaseException:
    try:
        try:
            raise KeyError(SECRET)
        except KeyError as first:
            raise ValueError(SECRET) from first
    except ValueError as second:
        return second


def test_kinds_and_places_without_the_words() -> None:
    report = crash_report(caught())
    assert report.index("KeyError") < report.index("ValueError")
    assert "in caught" in report
    assert SECRET not in report


def test_groups_are_opened_and_circles_end() -> None:
    first, second = caught(), OSError(SECRET)
    second.__cause__ = first
    first.__context__ = second
    report = crash_report(BaseExceptionGroup(SECRET, [first, second]))
    assert {"KeyError", "ValueError", "OSError", "ExceptionGroup"} <= set(report.split())
    assert SECRET not in report
