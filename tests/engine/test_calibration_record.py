"""A record comes back as it was kept, and is told in few words."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from meshinfer.core.calibration_report import CalibrationReport
from meshinfer.core.configuration import REFERENCE, Configuration
from meshinfer.core.step_curve import StepCurve
from meshinfer.engine.accuracy_guard import Accuracy
from meshinfer.engine.calibration import Calibrated
from meshinfer.engine.calibration_input import InputKind
from meshinfer.engine.calibration_plan import Trial
from meshinfer.engine.calibration_record import CalibrationRecord, from_json, report, to_json

CURVE = StepCurve(((1, 0.071), (4, 0.08), (8, 0.106)), ((64, 0.48),))
CHOSEN = Trial(
    Configuration.parse("f32/128/f32/2"), CURVE, True, Accuracy(128, 0.0016, 0.989)
)  # fmt: skip
RECORD = CalibrationRecord(
    Calibrated(
        CHOSEN.configuration,
        (
            CHOSEN,
            Trial(REFERENCE, StepCurve(((1, 0.1),)), False),
            Trial(Configuration.parse("f32/128/u8"), refused="No\nu8 \x1b[31mhere."),
            Trial(
                Configuration.parse("bf16/128/bf16/2"),
                StepCurve(((1, 0.0355), (4, 0.04), (8, 0.053))),
                True,
                Accuracy(128, difference=0.05),
            ),
        ),
        InputKind.TEXT,
        31.25,
    ),
    "2026-11-30T20:00:00+00:00",
)


def test_a_record_comes_back_as_it_was_kept() -> None:
    assert from_json(to_json(RECORD)) == RECORD


def changed(**fields: object) -> str:
    return json.dumps({**json.loads(to_json(RECORD)), **fields})


@pytest.mark.parametrize(
    "text",
    [
        "", "null", "[]", "{}", "[" * 100_000,
        changed(version=0),
        changed(configuration="f32/7/f32"),
        changed(configuration="f32/64/f32"),
        changed(input="rumour"),
        changed(took_s=None),
        changed(trials=3),
        changed(trials=[]),
        changed(trials=[{}]),
    ],
    ids=lambda text: text[:30],
)  # fmt: skip
def test_anything_else_is_no_record(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        from_json(text)


def test_the_report_tells_what_was_chosen_and_what_else_there_is() -> None:
    told = report(RECORD, "auto")
    assert (told.configuration, told.source, told.curve) == ("f32/128/f32/2", "auto", CURVE)
    assert told.accuracy.endswith("98.9 % of 128 positions (text)")
    assert (told.other, told.other_time) == ("bf16/128/bf16/2", pytest.approx(0.5))
    assert told.notes[1] == "f32/0/f32, time 1.41 (given up)"
    assert "No u8  [31mhere." in told.notes[2]  # nothing that a terminal would obey
    again = CalibrationReport.from_text(told.to_text())
    assert replace(again, other_time=told.other_time) == told


def test_a_calibration_that_measured_nothing_has_no_report() -> None:
    nothing = CalibrationRecord(replace(RECORD.result, trials=()), RECORD.date)
    assert nothing.chosen == Trial(CHOSEN.configuration)
    with pytest.raises(ValueError, match="nothing was measured"):
        report(nothing, "auto")
