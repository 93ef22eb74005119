"""What an agent costs an idle PC, and how quickly a PC becomes a member."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path

import psutil

from meshinfer.weights.obtain import catalogue_source
from meshinfer.weights.prepare import prepare
from tools.agent_process import AgentProcess, command
from tools.benches.bench_fleet import fleet_of
from tools.benches.options import BenchOptions
from tools.benches.report import Report
from tools.free_ports import free_ports

IDLE_S = 10.0


def run(report: Report, options: BenchOptions) -> None:
    """The second PC has no stage: the first serves alone."""
    folder = prepare(catalogue_source("smollm2-135m"), options.models, None, lambda progress: None)
    with (
        tempfile.TemporaryDirectory() as scratch,
        fleet_of(Path(scratch), folder.path, 1) as agents,
    ):
        leader = agents[0]
        ports = free_ports(2)
        idle = AgentProcess(Path(scratch), "idle", (ports[0], ports[1]))
        code = subprocess.run(
            command("invite", folder=leader.folder), capture_output=True, check=True
        ).stdout
        subprocess.run(
            command("join", "--offline", folder=idle.folder),
            input=code,
            capture_output=True,
            check=True,
        )
        try:
            idle.start("--peer", f"127.0.0.1:{leader.listen}", "--no-mdns")
            report.absolute("agent/join_s", _until_member(leader, idle), "s")
            report.absolute("agent/status_s", _status_s(idle.folder), "s")
            time.sleep(5.0)
            assert idle.process is not None
            process = psutil.Process(idle.process.pid)
            report.absolute("agent/memory_mb", process.memory_info().rss / 1e6, "MB")
            before = sum(process.cpu_times()[:2])
            time.sleep(IDLE_S)
            share = (sum(process.cpu_times()[:2]) - before) / IDLE_S / (os.cpu_count() or 1)
            report.absolute("agent/idle_cpu", share * 100, "%")
        finally:
            idle.stop()


def _until_member(leader: AgentProcess, idle: AgentProcess) -> float:
    """From the first line of the joiner's log (its ports are open) to the leader's table."""
    while "other PCs at port" not in idle.log:
        time.sleep(0.005)
    started = time.monotonic()
    while len((leader.status().get("fleet") or {}).get("members", ())) < 2:
        time.sleep(0.005)
    return time.monotonic() - started


def _status_s(folder: Path) -> float:
    """The command as a person runs it, the best of five."""
    took = []
    for _ in range(5):
        started = time.monotonic()
        subprocess.run(command("status", folder=folder), capture_output=True, check=True)
        took.append(time.monotonic() - started)
    return min(took)
