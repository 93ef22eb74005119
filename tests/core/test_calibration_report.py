"""A report fits its limit, comes back as it went, and nothing else is believed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshinfer.core.calibration_report import LARGEST_TEXT, CalibrationReport
from meshinfer.core.step_curve import StepCurve
from meshinfer.errors import ProtocolViolation

REPORT = CalibrationReport(
    configuration="f32/128/f32",
    source="auto",
    curve=StepCurve(((1, 0.071), (4, 0.08), (32, 0.319)), ((64, 0.48),)),
    accuracy="KL 0.0016, same first token for 98.9 % of 128 positions (text)",
    other="bf16/128/bf16",
    other_time=0.97,
    notes=("f32/128/f32, time 1.00", "f32/0/f32, time 1.40 (given up)"),
)


def test_a_report_comes_back_as_it_went() -> None:
    assert CalibrationReport.from_text(REPORT.to_text()) == REPORT


@given(st.lists(st.text(max_size=400), max_size=40))
def test_notes_never_make_it_too_long(notes: list[str]) -> None:
    report = CalibrationReport("f32/0/f32", "auto", REPORT.curve, notes=tuple(notes))
    text = report.to_text()
    assert len(text.encode()) <= LARGEST_TEXT
    assert len(json.loads(text)["notes"]) <= len(notes)


def test_times_below_a_microsecond_stay_positive() -> None:
    report = CalibrationReport("f32/0/f32", "auto", StepCurve(((1, 1e-9),)))
    assert CalibrationReport.from_text(report.to_text()).curve.decode_s(1) == 1e-6


def changed(**fields: object) -> str:
    return json.dumps({**json.loads(REPORT.to_text()), **fields})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{}",
        "[" * 3000,
        " " * (LARGEST_TEXT + 1),
        changed(decode=[]),
        changed(decode=[[1, -0.5]]),
        changed(decode=[[1, float("nan")]]),
        changed(decode=[[1.5, 0.5]]),
        changed(decode=[[number, 0.5] for number in range(1, 40)]),
        changed(decode={"1": 0.5}),
        changed(prefill=None),
        changed(configuration="x" * 65),
        changed(configuration=3),
        changed(source="\x1b[2J"),
        changed(other_time=float("inf")),
        changed(other_time=-1),
        changed(notes=[["deep"]]),
        changed(notes=7),
    ],
    ids=lambda text: text[:40],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ProtocolViolation):
        CalibrationReport.from_text(text)
