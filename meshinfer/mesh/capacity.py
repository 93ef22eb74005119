"""What this PC offers: memory now, and the devices that a stage may use.

psutil's figures, the owner's limits and a DeviceReport enter, a Capacity leaves. node makes one
CapacityMeter and lets the mesh ask it for every heartbeat.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version

import psutil

from meshinfer.core.fleet import Capacity
from meshinfer.mesh.device_choice import DeviceChoice
from meshinfer.mesh.device_report import DeviceReport, ask_devices

AskDevices = Callable[[], Awaitable[DeviceReport]]


@dataclass(frozen=True, slots=True)
class Reserve:
    """What the PC's owner keeps: the larger of both."""

    least_bytes: int = 1 << 30
    share: float = 0.15  # of all memory

    def size(self, total_bytes: int) -> int:
        return max(self.least_bytes, int(self.share * total_bytes))


DEFAULT_RESERVE = Reserve()
NOT_ASKED = DeviceChoice()


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of this PC's memory at one moment."""

    total: int
    available: int  # without swapping
    stages: int = 0  # what our own stages hold now: theirs to use again in the next plan

    def budget(self, limit_bytes: int | None, reserve: Reserve) -> int:
        """The most that stages may take here: weights, cache and their processes.

        A limit never promises what is not there: the lower of limit and free memory counts.
        """
        spare = max(0, self.available + self.stages - reserve.size(self.total))
        return spare if limit_bytes is None else min(max(0, limit_bytes), spare)


def measure(
    limit_bytes: int | None,
    reserve: Reserve,
    choice: DeviceChoice = NOT_ASKED,
    stage_pids: Iterable[int] = (),
) -> Capacity:
    """This PC now. Takes about a millisecond; `stage_pids` are the running stage hosts."""
    system = psutil.virtual_memory()
    memory = Memory(int(system.total), int(system.available), held_bytes(stage_pids))
    budget = memory.budget(limit_bytes, reserve)
    return Capacity(
        memory_total=memory.total,
        memory_free=budget,
        cores=usable_cores(),
        devices=choice.devices(budget),
        # The handshake compares versions before the devices have answered.
        openvino=choice.report.openvino or installed_openvino(),
    )


def held_bytes(pids: Iterable[int]) -> int:
    """Private memory of these processes; one that is gone holds none.

    Mapped weight files do not count: the system counts their pages as available already.
    """
    held = 0
    for pid in pids:
        try:
            figures = psutil.Process(pid).memory_info()
        except psutil.Error:
            continue
        # Windows tells private memory; elsewhere it is what is resident and not shared.
        private = getattr(figures, "private", None)
        resident = int(figures.rss) - int(getattr(figures, "shared", 0))
        held += max(0, resident if private is None else min(int(private), resident))
    return held


def usable_cores() -> int:
    """Logical cores that this process may run on, at least 1."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on Windows and macOS
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def installed_openvino() -> str:
    """Its version without importing it; empty when it is not installed."""
    try:
        return version("openvino")
    except PackageNotFoundError:
        return ""


class CapacityMeter:
    """This PC's figures with its owner's wishes. Devices are asked once per version of OpenVINO.

    `limit_bytes` is the most that stages may take (`--memory`), `wanted` is `--device`.
    """

    def __init__(
        self,
        limit_bytes: int | None,
        reserve: Reserve = DEFAULT_RESERVE,
        wanted: str = "auto",
        ask: AskDevices = ask_devices,
        installed: Callable[[], str] = installed_openvino,
    ) -> None:
        self._limit_bytes = limit_bytes
        self._reserve = reserve
        self._choice = DeviceChoice(wanted=wanted)
        self._ask = ask
        self._installed = installed
        self._asked_version: str | None = None

    @property
    def problem(self) -> str:
        """Why the devices are not all known; empty when they are. For `status`."""
        return self._choice.report.problem

    async def ask(self) -> DeviceReport:
        """Ask the devices unless that was done for the installed OpenVINO; up to 40 s.

        A report without a usable CPU is not kept: the next call asks again.
        """
        installed = self._installed()
        if self._asked_version != installed:
            report = await self._ask()
            self._choice = replace(self._choice, report=report)
            self._asked_version = installed if report.has_cpu else None
        return self._choice.report

    def hold_back(self, device: str, why: str) -> None:
        """Use `device` no more: it failed its self-test, or a stage died on it. Idempotent."""
        others = tuple(one for one in self._choice.held_back if one[0] != device)
        self._choice = replace(self._choice, held_back=(*others, (device, why)))

    def measure(self, stage_pids: Iterable[int] = ()) -> Capacity:
        """This PC now. Before the first `ask` has ended it has no devices."""
        return measure(self._limit_bytes, self._reserve, self._choice, stage_pids)
