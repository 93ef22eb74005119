"""A calibration as it is kept and as it is told: to JSON and back, and as a short report."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from meshinfer.core.calibration_report import CalibrationReport
from meshinfer.core.configuration import Configuration
from meshinfer.core.step_curve import Points, StepCurve
from meshinfer.engine.accuracy_guard import Accuracy
from meshinfer.engine.calibration import Calibrated
from meshinfer.engine.calibration_input import InputKind
from meshinfer.engine.calibration_plan import Trial, best_elsewhere, relative_time
from meshinfer.errors import UsageError

CALIBRATION_VERSION = 1
"""Of the sizes, weights and bounds: another one makes every stage be measured again."""


@dataclass(frozen=True, slots=True)
class CalibrationRecord:
    """`date` is ISO 8601 with an offset: when it was measured."""

    result: Calibrated
    date: str

    @property
    def chosen(self) -> Trial:
        """The trial of the chosen configuration; one without figures when there was none."""
        wanted = self.result.chosen
        return next(
            (trial for trial in self.result.trials if trial.configuration == wanted), Trial(wanted)
        )


def to_json(record: CalibrationRecord) -> str:
    result = record.result
    return json.dumps(
        {
            "version": CALIBRATION_VERSION,
            "date": record.date,
            "configuration": str(result.chosen),
            "input": result.input_kind.value,
            "took_s": round(result.took_s, 3),
            "trials": [_trial_fields(trial) for trial in result.trials],
        },
        indent=1,
    )


def from_json(text: str) -> CalibrationRecord:
    """Raises ValueError: no record of this version."""
    try:
        fields = json.loads(text)
        if fields["version"] != CALIBRATION_VERSION:
            raise ValueError(f"it has version {fields['version']}")
        result = Calibrated(
            chosen=Configuration.parse(fields["configuration"]),
            trials=tuple(_trial(trial) for trial in fields["trials"]),
            input_kind=InputKind(fields["input"]),
            took_s=float(fields["took_s"]),
        )
        record = CalibrationRecord(result, str(fields["date"]))
        if record.chosen.curve is None:
            raise ValueError("the chosen configuration was not measured")
    except (KeyError, TypeError, AttributeError, RecursionError, UsageError) as error:
        raise ValueError(f"it is no record: {error!r:.200}") from error
    return record


def report(record: CalibrationRecord, source: str) -> CalibrationReport:
    """For `status` and the leader. Raises ValueError: nothing was measured."""
    chosen = record.chosen
    if chosen.curve is None:
        raise ValueError("nothing was measured")
    kind = record.result.input_kind.value
    elsewhere = best_elsewhere(record.result.trials, chosen)
    return CalibrationReport(
        configuration=str(chosen.configuration),
        source=source,
        curve=chosen.curve,
        accuracy=f"{chosen.accuracy} ({kind})" if chosen.accuracy else "",
        other=str(elsewhere[0].configuration) if elsewhere else "",
        other_time=elsewhere[1] if elsewhere else 0.0,
        notes=tuple(_note(trial, chosen.curve) for trial in record.result.trials),
    )


def _note(trial: Trial, chosen: StepCurve) -> str:
    """One line, printable whatever a driver wrote into its message."""
    parts = [str(trial.configuration)]
    if trial.curve is not None:
        share = relative_time(trial.curve, chosen)
        parts.append(f"time {share:.2f}" + ("" if trial.is_complete else " (given up)"))
    if trial.accuracy is not None:
        parts.append(str(trial.accuracy))
    if trial.refused:
        parts.append(f"refused: {trial.refused}")
    return "".join(letter if letter.isprintable() else " " for letter in ", ".join(parts))


def _trial_fields(trial: Trial) -> dict[str, Any]:
    curve, accuracy = trial.curve, trial.accuracy
    return {
        "configuration": str(trial.configuration),
        "curve": None if curve is None else {"decode": curve.decode, "prefill": curve.prefill},
        "is_complete": trial.is_complete,
        "accuracy": None if accuracy is None else asdict(accuracy),
        "refused": trial.refused,
        "is_confirmed": trial.is_confirmed,
    }


def _trial(fields: dict[str, Any]) -> Trial:
    curve, accuracy = fields["curve"], fields["accuracy"]
    return Trial(
        configuration=Configuration.parse(fields["configuration"]),
        curve=curve and StepCurve(_points(curve["decode"]), _points(curve["prefill"])),
        is_complete=bool(fields["is_complete"]),
        accuracy=accuracy and Accuracy(**accuracy),
        refused=str(fields["refused"]),
        is_confirmed=bool(fields["is_confirmed"]),
    )


def _points(values: Any) -> Points:
    return tuple((int(size), float(seconds)) for size, seconds in values)
