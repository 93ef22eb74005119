"""What a PC tells of a stage's calibration: a short JSON text in its reports, shown by `status`.

The leader reads texts of other PCs, so everything is checked before it is believed. Pure.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from meshinfer.core.step_curve import Points, StepCurve
from meshinfer.errors import ProtocolViolation

LARGEST_TEXT = 3072
"""Bytes of the text: a report goes out every second while a plan loads."""

_LONGEST_WORD = 64
_LONGEST_NOTE = 160
_MOST_POINTS = 32


@dataclass(frozen=True, slots=True)
class CalibrationReport:
    """`configuration` in its short text form; `source` is how it was chosen: "auto", "default",
    "forced" or "deterministic". `accuracy` is a sentence, empty when it was not measured.

    `other` is the best configuration in another precision than the plan's ("": none was tried) and
    `other_time` its time as a share of the chosen one's: what a plan in that precision would gain.
    """

    configuration: str
    source: str
    curve: StepCurve
    accuracy: str = ""
    other: str = ""
    other_time: float = 0.0
    notes: tuple[str, ...] = ()  # one for each trial

    def to_text(self) -> str:
        """At most LARGEST_TEXT bytes; notes that do not fit are left out, the last ones first."""
        notes = [note[:_LONGEST_NOTE] for note in self.notes]
        while True:
            text = json.dumps(self._fields(notes), separators=(",", ":"))
            if len(text) <= LARGEST_TEXT or not notes:  # ASCII: a character is a byte
                return text
            notes.pop()

    def _fields(self, notes: list[str]) -> dict[str, Any]:
        return {
            "configuration": self.configuration,
            "source": self.source,
            "decode": _rounded(self.curve.decode),
            "prefill": _rounded(self.curve.prefill),
            "accuracy": self.accuracy[:_LONGEST_NOTE],
            "other": self.other,
            "other_time": round(self.other_time, 4),
            "notes": notes,
        }

    @classmethod
    def from_text(cls, text: str) -> CalibrationReport:
        """Raises ProtocolViolation: it is no such text."""
        try:
            if len(text) > LARGEST_TEXT:
                raise ValueError("too long")
            fields = json.loads(text)
            return cls(
                configuration=_word(fields["configuration"]),
                source=_word(fields["source"]),
                curve=StepCurve(_points(fields["decode"]), _points(fields["prefill"])),
                accuracy=_word(fields["accuracy"], _LONGEST_NOTE),
                other=_word(fields["other"]),
                other_time=_share(fields["other_time"]),
                notes=tuple(_word(note, _LONGEST_NOTE) for note in fields["notes"]),
            )
        # RecursionError: a text of brackets only.
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise ProtocolViolation(f"A calibration cannot be read: {error!r:.200}") from error


def _rounded(points: Points) -> list[list[float]]:
    """Microseconds are enough."""
    return [[count, max(1e-6, round(seconds, 6))] for count, seconds in points]


def _points(value: Any) -> Points:
    if not isinstance(value, list) or len(value) > _MOST_POINTS:
        raise ValueError("points are a short list")
    return tuple((_count(count), float(seconds)) for count, seconds in value)


def _count(value: Any) -> int:
    if not isinstance(value, int):
        raise ValueError("a count is a whole number")
    return value


def _word(value: Any, longest: int = _LONGEST_WORD) -> str:
    """What may be shown on a terminal."""
    if not isinstance(value, str) or len(value) > longest or not value.isprintable():
        raise ValueError("not a short text")
    return value


def _share(value: Any) -> float:
    share = float(value)
    if not 0 <= share < 1000:
        raise ValueError("not a share of time")
    return share
