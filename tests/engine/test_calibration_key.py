"""A key changes with everything that a calibration depends on, and with nothing else."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from meshinfer.engine.calibration_key import (
    Subject,
    available_threads,
    calibration_key,
    device_facts,
)

SUBJECT = Subject("d" * 64, "CPU", "f32", 0)
FACTS = {"FULL_DEVICE_NAME": "A CPU", "plugin": "['2026.4.1']"}


class Core:
    """A core whose plugin knows a name only."""

    def get_property(self, device_name: str, property: str) -> Any:
        if property != "FULL_DEVICE_NAME":
            raise RuntimeError(f"{device_name} has no {property}")
        return "Intel(R) Arc(TM)"

    def get_versions(self, device_name: str) -> dict[str, Any]:
        return {device_name: SimpleNamespace(build_number="2026.4.1-1")}


def test_a_key_is_the_same_for_the_same() -> None:
    key = calibration_key(SUBJECT, dict(FACTS), 8)
    assert key == calibration_key(SUBJECT, dict(reversed(FACTS.items())), 8)
    assert len(key) == 64


@pytest.mark.parametrize(
    ("subject", "facts", "threads"),
    [
        (replace(SUBJECT, stage="e" * 64), FACTS, 8),
        (replace(SUBJECT, device="GPU.0"), FACTS, 8),
        (replace(SUBJECT, precision="bf16"), FACTS, 8),
        (replace(SUBJECT, threads=4), FACTS, 8),
        (replace(SUBJECT, forced="f32/0/f32"), FACTS, 8),
        (SUBJECT, {**FACTS, "FULL_DEVICE_NAME": "Another CPU"}, 8),
        (SUBJECT, {**FACTS, "plugin": "['2026.5.0']"}, 8),
        (SUBJECT, {**FACTS, "DRIVER_VERSION": "32.0"}, 8),
        (SUBJECT, FACTS, 4),
    ],
)
def test_a_key_changes_with(subject: Subject, facts: dict[str, str], threads: int) -> None:
    assert calibration_key(subject, facts, threads) != calibration_key(SUBJECT, FACTS, 8)


def test_a_device_is_asked_for_what_it_knows() -> None:
    facts = device_facts(Core(), "GPU.0")
    assert facts == {"FULL_DEVICE_NAME": "Intel(R) Arc(TM)", "plugin": "['2026.4.1-1']"}
    assert "features" in device_facts(Core(), "CPU")


def test_there_is_a_thread_to_compute_on() -> None:
    assert available_threads() >= 1
