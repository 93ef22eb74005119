"""Prometheus' text format, by its document."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshinfer.api.exposition import Distribution, Sample, SampleKind, exposition

ODD = 'ab"\\\n{},é '
COUNTER, GAUGE, HISTOGRAM = SampleKind.COUNTER, SampleKind.GAUGE, SampleKind.HISTOGRAM


def gauge(value: float, name: str = "m", labels: tuple[tuple[str, str], ...] = ()) -> Sample:
    return Sample(name, GAUGE, "Help.", labels, value)


def test_nothing_is_an_empty_document() -> None:
    assert exposition([]) == ""


def test_samples_of_one_name_stand_together() -> None:
    samples = [
        Sample("a_total", COUNTER, "As.", (("x", "1"), ("y", "2")), 3),
        gauge(0.25, "b"),
        Sample("a_total", COUNTER, "As.", (("x", "2"), ("y", "2")), 4.0),
    ]
    assert exposition(samples) == (
        "# HELP a_total As.\n"
        "# TYPE a_total counter\n"
        'a_total{x="1",y="2"} 3\n'
        'a_total{x="2",y="2"} 4\n'
        "# HELP b Help.\n"
        "# TYPE b gauge\n"
        "b 0.25\n"
    )


def test_a_histogram() -> None:
    value = Distribution(((0.5, 1), (1.0, 3)), 4, 7.25)
    assert exposition([Sample("h_seconds", HISTOGRAM, "Hs.", (("a", "b"),), value)]) == (
        "# HELP h_seconds Hs.\n"
        "# TYPE h_seconds histogram\n"
        'h_seconds_bucket{a="b",le="0.5"} 1\n'
        'h_seconds_bucket{a="b",le="1"} 3\n'
        'h_seconds_bucket{a="b",le="+Inf"} 4\n'
        'h_seconds_sum{a="b"} 7.25\n'
        'h_seconds_count{a="b"} 4\n'
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (-2.0, "-2"),
        (1e-9, "1e-09"),
        (2.0**60, "1.152921504606847e+18"),
        (math.inf, "+Inf"),
        (-math.inf, "-Inf"),
        (math.nan, "NaN"),
    ],
)
def test_numbers(value: float, text: str) -> None:
    assert exposition([gauge(value)]).splitlines()[-1] == f"m {text}"


@given(st.text(ODD), st.text(ODD))
def test_odd_text_stays_on_its_line(help_text: str, label: str) -> None:
    text = exposition([Sample("m", GAUGE, help_text, (("x", label),), 1)])
    words, kind, line, rest = text.split("\n")
    assert (kind, rest) == ("# TYPE m gauge", "")
    found = re.fullmatch(r'm\{x="((?:[^"\\]|\\["\\n])*)"\} 1', line, re.DOTALL)
    assert found is not None
    assert _read(found[1]) == label
    assert _read(words.removeprefix("# HELP m ")) == help_text


def _read(escaped: str) -> str:
    """As Prometheus reads it back."""
    return re.sub(r'\\(["\\n])', lambda found: "\n" if found[1] == "n" else found[1], escaped)


@pytest.mark.parametrize("name", ["", "1a", "a b", "a-b", "a\n", "é"])
def test_names_that_nobody_could_read(name: str) -> None:
    with pytest.raises(ValueError, match="no name of a metric"):
        exposition([gauge(1, name)])
    with pytest.raises(ValueError, match="no name of a label"):
        exposition([gauge(1, labels=((name, "x"),))])
