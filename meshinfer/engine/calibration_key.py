"""What a calibration is true for: stage, device, driver, versions and the room to compute in.

Two keys differ when any of it does; the record is then measured anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from meshinfer.engine.calibration_record import CALIBRATION_VERSION

_PROPERTIES = (
    "FULL_DEVICE_NAME", "DEVICE_ARCHITECTURE", "OPTIMIZATION_CAPABILITIES", "DRIVER_VERSION",
    "GPU_UARCH_VERSION", "NPU_DRIVER_VERSION", "NPU_COMPILER_VERSION",
)  # fmt: skip
"""A plugin without one of them is asked for the others (intel_gpu and intel_npu properties.hpp)."""


class DescribedCore(Protocol):
    """The part of openvino.Core that is asked."""

    def get_property(self, device_name: str, property: str) -> Any: ...

    def get_versions(self, device_name: str) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Subject:
    """`stage` is the digest of the stage's manifest, `threads` the owner's limit (0: none),
    `forced` a configuration in its text form, or empty."""

    stage: str
    device: str
    precision: str
    threads: int
    forced: str = ""


def available_threads() -> int:
    """That this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def this_device_facts(device: str) -> dict[str, str]:
    """device_facts of this PC's device. Blocks."""
    import openvino as ov

    return device_facts(ov.Core(), device)


def device_facts(core: DescribedCore, device: str) -> dict[str, str]:
    """Name, features, driver and plugin of a device."""
    facts = {}
    for name in _PROPERTIES:
        with contextlib.suppress(Exception):  # this plugin has no such property
            facts[name] = str(core.get_property(device, name))
    with contextlib.suppress(Exception):  # a device that the core does not know
        versions = core.get_versions(device)
        facts["plugin"] = str(sorted(str(one.build_number) for one in versions.values()))
    if device.startswith("CPU"):
        facts["features"] = _cpu_features()
    return facts


def _cpu_features() -> str:
    """A CPU's name may stand for generations ("AMD EPYC" in a virtual machine): on Linux its list
    of instructions is asked as well, elsewhere what the system calls family, model and stepping."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as lines:
        for line in lines:
            if line.startswith(("flags", "Features")):
                return line.partition(":")[2].strip()
    return platform.processor()


def calibration_key(subject: Subject, facts: dict[str, str], threads: int) -> str:
    """64 hex digits. `threads` are those available."""
    content = {
        "subject": asdict(subject),
        "facts": facts,
        "threads": threads,
        "version": CALIBRATION_VERSION,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
