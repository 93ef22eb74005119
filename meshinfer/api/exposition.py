"""Figures as Prometheus reads them: samples -> its text format 0.0.4. Pure.

https://prometheus.io/docs/instrumenting/exposition_formats/. Whoever has figures implements
Metrics; there is no registry.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = tuple[tuple[str, str], ...]

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*", re.ASCII)
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*", re.ASCII)


class SampleKind(StrEnum):
    COUNTER = "counter"  # only grows; its name ends in _total
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Distribution:
    """How often a figure was at most each of some bounds."""

    buckets: tuple[tuple[float, int], ...]  # (upper bound, how many up to it), bounds ascending
    count: int
    total: float  # sum of all observed values


@dataclass(frozen=True, slots=True)
class Sample:
    """One figure now. Samples of one name share `kind` and `help`, and differ in `labels`."""

    name: str  # meshinfer_..., with the unit last: _seconds, _bytes, _total
    kind: SampleKind
    help: str
    labels: Labels
    value: float | Distribution  # a Distribution exactly when `kind` is HISTOGRAM


class Metrics(Protocol):
    """A source of figures, asked for every scrape: it must not block."""

    def samples(self) -> Iterable[Sample]: ...


def exposition(samples: Iterable[Sample]) -> str:
    """The whole document. Samples of one name are put together, as the format demands.

    Raises ValueError for a name that Prometheus would not read: a bug of the source.
    """
    families: dict[str, list[Sample]] = {}
    for sample in samples:
        families.setdefault(sample.name, []).append(sample)
    lines = (line for family in families.values() for line in _family(family))
    return "".join(f"{line}\n" for line in lines)


def _family(samples: list[Sample]) -> Iterator[str]:
    first = samples[0]
    if not _NAME.fullmatch(first.name):
        raise ValueError(f"'{first.name}' is no name of a metric")
    words = first.help.replace("\\", r"\\").replace("\n", r"\n")
    yield f"# HELP {first.name} {words}"
    yield f"# TYPE {first.name} {first.kind.value}"
    for sample in samples:
        yield from _lines(sample)


def _lines(sample: Sample) -> Iterator[str]:
    name, labels, value = sample.name, sample.labels, sample.value
    if not isinstance(value, Distribution):
        yield f"{name}{_labels(labels)} {_number(value)}"
        return
    for bound, count in (*value.buckets, (math.inf, value.count)):
        yield f"{name}_bucket{_labels((*labels, ('le', _number(bound))))} {count}"
    yield f"{name}_sum{_labels(labels)} {_number(value.total)}"
    yield f"{name}_count{_labels(labels)} {value.count}"


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_label_value(name, value)}"' for name, value in labels) + "}"


def _label_value(name: str, value: str) -> str:
    if not _LABEL.fullmatch(name):
        raise ValueError(f"'{name}' is no name of a label")
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if math.isnan(value):
        return "NaN"
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(float(value))
