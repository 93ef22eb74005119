"""Which devices of this PC stages may use, and why the others are held back.

A DeviceReport and the owner's wish enter, Devices leave, the preferred one first: the planner takes
the first that has no note. Called by mesh/capacity.py; pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshinfer.core.fleet import Device
from meshinfer.mesh.device_probe import kind_of
from meshinfer.mesh.device_report import DeviceFacts, DeviceReport

NO_REPORT = DeviceReport("", ())
WISHES = ("auto", "cpu", "gpu", "npu")


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """`wanted` is one of WISHES; `held_back` has devices that failed here: (name, why)."""

    report: DeviceReport = NO_REPORT
    wanted: str = "auto"
    held_back: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if self.wanted not in WISHES:
            raise ValueError(f"'{self.wanted}' is none of {', '.join(WISHES)}")

    def devices(self, budget: int) -> tuple[Device, ...]:
        """With the memory that a stage may use there, when this PC gives `budget` bytes."""
        found = [self._device(facts, budget) for facts in self.report.devices]
        culprit = self.report.culprit
        if culprit and all(one.name != culprit for one in found):
            found.append(Device(culprit, culprit, 0, (), self.report.problem))
        preferred = "GPU" if self.wanted == "gpu" else "CPU"
        found.sort(key=lambda one: (bool(one.note), kind_of(one.name) != preferred, one.name))
        return tuple(found)

    def _device(self, facts: DeviceFacts, budget: int) -> Device:
        note = dict(self.held_back).get(facts.name, "") or self._note(facts)
        return Device(facts.name, facts.full_name, _memory(facts, budget), _precisions(facts), note)

    def _note(self, facts: DeviceFacts) -> str:
        """Why this device is not used; empty when it is."""
        kind = kind_of(facts.name)
        if kind == "NPU":
            return "is not used yet: it runs fixed shapes only"
        if kind == "GPU" and self.wanted != "gpu":
            return "is not used unless this PC is started with --device gpu"
        if kind == "GPU" and not facts.memory:
            reason = facts.problems[0] if facts.problems else "no figure"
            return f"does not tell its memory ({reason})"
        return ""


def _memory(facts: DeviceFacts, budget: int) -> int:
    """Bytes. What shares the PC's memory shares its budget too."""
    if kind_of(facts.name) == "CPU":
        return budget
    return min(facts.memory, budget) if facts.integrated else facts.memory


def _precisions(facts: DeviceFacts) -> tuple[str, ...]:
    """In which a stage may compute there. `BF16` among a CPU's capabilities is the test for bf16:
    without AVX512_BF16 or AMX it would be emulated."""
    kind = kind_of(facts.name)
    if kind == "NPU":
        return ("f16",)
    if kind == "CPU":
        return ("f32", "bf16") if "BF16" in facts.capabilities else ("f32",)
    return ("f32", "f16") if "FP16" in facts.capabilities else ("f32",)
