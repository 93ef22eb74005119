"""Memory that stages may use, and devices that are asked once."""

from __future__ import annotations

import asyncio
import os
import sys

import psutil
import pytest

from meshinfer.mesh.capacity import (
    CapacityMeter,
    Memory,
    Reserve,
    held_bytes,
    installed_openvino,
    measure,
    usable_cores,
)
from meshinfer.mesh.device_report import DeviceFacts, DeviceReport

GB = 1 << 30
CPU = DeviceFacts("CPU", "A processor", True, ("FP32",), 0, 0)
KNOWN = DeviceReport("2026.4.1", (CPU,))
FAILED = DeviceReport("", (), "the device probe crashed (signal 11)", "CPU")


class StubAsk:
    """Answers in turn and counts the questions."""

    def __init__(self, *answers: DeviceReport) -> None:
        self._answers = list(answers)
        self.asked = 0

    async def __call__(self) -> DeviceReport:
        self.asked += 1
        return self._answers.pop(0)


@pytest.mark.parametrize(
    ("limit", "available", "stages", "expected"),
    [
        (None, 10 * GB, 0, 10 * GB - int(0.15 * 16 * GB)),  # a share of 16 GB is the larger reserve
        (2 * GB, 10 * GB, 0, 2 * GB),  # the limit is the lower
        (9 * GB, 10 * GB, 0, 10 * GB - int(0.15 * 16 * GB)),  # free memory is the lower
        (2 * GB, GB, 0, 0),  # the owner's reserve comes first
        (2 * GB, GB, 3 * GB, 4 * GB - int(0.15 * 16 * GB)),  # a loaded stage may be replaced
        (0, 10 * GB, 0, 0),
        (-5, 10 * GB, 0, 0),
    ],
)
def test_the_budget(limit: int | None, available: int, stages: int, expected: int) -> None:
    assert Memory(16 * GB, available, stages).budget(limit, Reserve()) == expected


def test_a_small_pc_keeps_a_gibibyte() -> None:
    assert Reserve().size(4 * GB) == GB
    assert Reserve().size(100 * GB) == 15 * GB
    assert Memory(4 * GB, 3 * GB).budget(None, Reserve()) == 2 * GB


def test_this_pc_gives_at_most_its_limit_and_less_than_it_has() -> None:
    limited = measure(1 << 20, Reserve(0, 0.0))
    assert limited.memory_free == 1 << 20
    assert limited.memory_total == psutil.virtual_memory().total
    everything = measure(None, Reserve())
    assert 0 <= everything.memory_free <= everything.memory_total - GB
    assert everything.cores == usable_cores() >= 1


def test_private_memory_of_processes_counts_and_lost_ones_do_not() -> None:
    own = held_bytes([os.getpid()])
    assert 5_000_000 < own < psutil.virtual_memory().total
    gone = max(psutil.pids()) + 100_000
    assert held_bytes([gone]) == 0
    assert held_bytes([]) == 0


async def test_devices_are_asked_once_for_a_version() -> None:
    ask = StubAsk(KNOWN, KNOWN)
    installed = ["2026.4.1"]
    meter = CapacityMeter(GB, ask=ask, installed=lambda: installed[0])
    assert meter.measure().devices == ()
    await meter.ask()
    await meter.ask()
    assert ask.asked == 1
    assert [one.name for one in meter.measure().devices] == ["CPU"]
    assert meter.measure().openvino == "2026.4.1"
    installed[0] = "2026.5.0"
    await meter.ask()
    assert ask.asked == 2


async def test_a_report_without_a_cpu_is_asked_for_again() -> None:
    ask = StubAsk(FAILED, KNOWN)
    meter = CapacityMeter(GB, ask=ask, installed=lambda: "2026.4.1")
    await meter.ask()
    assert meter.problem == "the device probe crashed (signal 11)"
    held_back = meter.measure().devices
    assert [(one.name, one.note) for one in held_back] == [("CPU", meter.problem)]
    await meter.ask()
    assert meter.problem == ""
    assert meter.measure().devices[0].note == ""


async def test_a_failed_device_is_held_back_until_the_agent_ends() -> None:
    gpu = DeviceFacts("GPU.0", "A GPU", True, ("FP16",), 8 * GB, 0)
    report = DeviceReport("2026.4.1", (gpu, CPU))
    meter = CapacityMeter(GB, Reserve(0, 0.0), "gpu", StubAsk(report), lambda: "2026.4.1")
    await meter.ask()
    assert meter.measure().devices[0].name == "GPU.0"
    meter.hold_back("GPU.0", "its driver was reset")
    meter.hold_back("GPU.0", "its driver was reset twice")
    devices = meter.measure().devices
    assert [(one.name, one.note) for one in devices] == [
        ("CPU", ""),
        ("GPU.0", "its driver was reset twice"),
    ]


def test_the_installed_version_is_told_before_the_devices_have_answered() -> None:
    """J13: the handshake compares it, and an empty one would equal any other empty one."""
    assert installed_openvino().startswith("20")
    assert measure(None, Reserve()).openvino == installed_openvino()


@pytest.mark.slow
async def test_an_agent_that_measures_never_imports_openvino() -> None:
    """An agent without a stage stays small (below 120 MB)."""
    script = (
        "import asyncio, sys\n"
        "from meshinfer.mesh.capacity import CapacityMeter\n"
        "from meshinfer.mesh.planner import plan\n"
        "meter = CapacityMeter(None)\n"
        "asyncio.run(meter.ask())\n"
        "assert meter.measure().devices, meter.problem\n"
        "heavy = ('openvino', 'numpy')\n"
        "assert not [n for n, m in sys.modules.items() if n.startswith(heavy) and m is not None]\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(90):
        _, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
