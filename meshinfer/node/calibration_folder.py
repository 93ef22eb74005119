"""Calibrations that are kept: a file each, named by what it is true for.

A record that cannot be read is measured again, and one that cannot be written costs a warning: a
calibration only saves time.
"""

from __future__ import annotations

import logging
from pathlib import Path

from meshinfer.engine.calibration_record import CalibrationRecord, from_json, to_json
from meshinfer.mesh.atomic_file import replace_file

log = logging.getLogger(__name__)

MOST_KEPT = 64
"""Records of one PC, a few kilobytes each: several plans of several models on three devices."""

_LARGEST_RECORD = 256 << 10  # bytes; a full one has 7 KB


class CalibrationFolder:
    """Everything here blocks for a moment."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load(self, key: str) -> CalibrationRecord | None:
        """None: never measured, or not readable any more."""
        path = self._path(key)
        try:
            if not path.is_file():
                return None
            if path.stat().st_size > _LARGEST_RECORD:
                raise ValueError("it is too large")
            return from_json(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:  # UnicodeDecodeError is a ValueError
            log.warning("a kept calibration is of no use, measuring again: %s", error)
            return None

    def save(self, key: str, record: CalibrationRecord) -> None:
        try:
            replace_file(self._path(key), to_json(record))
            self._prune()
        except OSError as error:
            log.warning("the calibration cannot be kept and will be measured again: %s", error)

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.json"

    def _prune(self) -> None:
        """The oldest beyond the limit go."""
        records = sorted(self._folder.glob("*.json"), key=_written_at, reverse=True)
        for path in records[MOST_KEPT:]:
            path.unlink(missing_ok=True)


def _written_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # another stage host removed it
        return 0.0
