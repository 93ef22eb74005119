"""What OpenVINO sees on this PC, asked in a process of its own.

`python -m meshinfer.mesh.device_probe [KIND ...]` is run by mesh/device_report.py only. It takes
the kinds of device to ask (`CPU`, `GPU`, `NPU`; none: all), tells on standard error whom it is
about to ask, and writes one JSON line on standard output. A driver that hangs or aborts takes down
this process and not the agent, and only here is openvino imported for it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol

ASKING = "asking "
"""Begins the lines on standard error; the last one names the culprit of a hang or crash."""

LISTING = "the list of devices"

PROPERTIES: dict[str, dict[str, str]] = {
    "CPU": {
        "full_name": "FULL_DEVICE_NAME",
        "type": "DEVICE_TYPE",
        "capabilities": "OPTIMIZATION_CAPABILITIES",
    },
    "GPU": {
        "full_name": "FULL_DEVICE_NAME",
        "type": "DEVICE_TYPE",
        "capabilities": "OPTIMIZATION_CAPABILITIES",
        "memory": "GPU_DEVICE_TOTAL_MEM_SIZE",
        "max_alloc": "GPU_DEVICE_MAX_ALLOC_MEM_SIZE",
    },
    "NPU": {
        "full_name": "FULL_DEVICE_NAME",
        "type": "DEVICE_TYPE",
        "capabilities": "OPTIMIZATION_CAPABILITIES",
        "memory": "NPU_DEVICE_TOTAL_MEM_SIZE",
    },
}
"""By kind of device: our name and OpenVINO's (intel_gpu and intel_npu properties.hpp)."""


class DeviceCore(Protocol):
    """The part of openvino.Core that is asked."""

    @property
    def available_devices(self) -> Sequence[str]: ...

    def get_property(self, device_name: str, property: str) -> Any: ...


def kind_of(device: str) -> str:
    """`GPU` of `GPU.0`."""
    return device.partition(".")[0].upper()


def describe(
    core: DeviceCore, kinds: Sequence[str], tell: Callable[[str], None]
) -> list[dict[str, Any]]:
    """One document for every device of these kinds (none given: all that are known here)."""
    tell(LISTING)
    found = []
    for name in core.available_devices:
        kind = kind_of(name)
        if kind in PROPERTIES and (not kinds or kind in kinds):
            tell(name)
            found.append(describe_device(core, name))
    return found


def describe_device(core: DeviceCore, name: str) -> dict[str, Any]:
    """Its properties; `problems` has the reason for each one that could not be read."""
    document: dict[str, Any] = {"name": name}
    problems: dict[str, str] = {}
    for field, property_name in PROPERTIES[kind_of(name)].items():
        try:
            document[field] = _plain(core.get_property(name, property_name))
        except Exception as error:  # a plugin raises what it likes; the other answers still count
            problems[property_name] = _last_line(error)
    document["problems"] = problems
    return document


def _plain(value: Any) -> Any:
    """Numbers and texts as they are, lists of texts, and the name of an OpenVINO enum value."""
    if isinstance(value, bool | int | str):
        return value
    if isinstance(value, list | tuple | set | frozenset):
        return sorted(str(item) for item in value)
    return str(getattr(value, "name", value))


def _last_line(error: Exception) -> str:
    """OpenVINO puts its own source lines first and the reason last."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:200] if lines else type(error).__name__


def _tell(what: str) -> None:
    sys.stderr.write(f"{ASKING}{what}\n")
    sys.stderr.flush()


def _keep_answer_apart() -> int:
    """A copy of standard output; what plugins print there now goes to standard error."""
    answer = os.dup(1)
    os.dup2(2, 1)
    return answer


def main(arguments: Sequence[str]) -> int:
    answer = _keep_answer_apart()
    _tell("openvino itself")
    import openvino

    core = openvino.Core()
    document = {
        "openvino": openvino.get_version(),
        "devices": describe(core, [kind.upper() for kind in arguments], _tell),
    }
    with open(answer, "w", encoding="utf-8") as stream:
        stream.write(json.dumps(document) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
