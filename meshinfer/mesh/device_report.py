"""Ask a child process for this PC's OpenVINO devices, and survive whatever it does.

A command and a patience enter, a DeviceReport leaves. Called by mesh/capacity.py only. The agent
itself never imports openvino: a driver that hangs, crashes or says nothing becomes a sentence here
(openvinotoolkit/model_server#3635, openvino.genai#1358).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from meshinfer.mesh.device_probe import ASKING

PROBE_COMMAND = (sys.executable, "-m", "meshinfer.mesh.device_probe")
PROBE_PATIENCE_S = 20.0
"""A cold import of OpenVINO behind a virus scanner takes seconds; a hang takes for ever."""

ANSWER_LIMIT = 1 << 20
"""Bytes. A PC with many devices answers in a few kB."""

KILL_PATIENCE_S = 5.0

_KEPT_ERRORS = 4096  # bytes of the end of standard error


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What OpenVINO told of one device."""

    name: str
    full_name: str
    integrated: bool  # shares the PC's memory
    capabilities: tuple[str, ...]
    memory: int  # bytes; 0 when unknown or, for a CPU, not its own
    max_alloc: int  # bytes of the largest single buffer; 0 when unknown
    problems: tuple[str, ...] = ()  # properties that could not be read, with the reason


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """All devices of this PC. `problem` tells why it may be incomplete; empty when it is not."""

    openvino: str  # version; empty when it could not be asked
    devices: tuple[DeviceFacts, ...]
    problem: str = ""
    culprit: str = ""  # what was being asked when the probe failed: a device, or empty

    @property
    def has_cpu(self) -> bool:
        return any(device.name == "CPU" for device in self.devices)


async def ask_devices(
    command: Sequence[str] = PROBE_COMMAND, patience_s: float = PROBE_PATIENCE_S
) -> DeviceReport:
    """All devices; when asking them fails, the CPU alone and the reason.

    A probe that fails is told in the report, never raised. Takes at most twice `patience_s`.
    """
    everything = await _ask(command, patience_s)
    if not everything.problem:
        return everything
    report = await _ask((*command, "CPU"), patience_s)
    if report.problem:
        reason = f"the CPU could not be asked either: {report.problem}"
        return replace(report, problem=reason, culprit="CPU")
    return replace(report, problem=everything.problem, culprit=everything.culprit)


async def _ask(command: Sequence[str], patience_s: float) -> DeviceReport:
    """One run of the child. `problem` is set when it gave no report."""
    errors = bytearray()
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )
    except OSError as error:
        return _failure(f"could not be started ({error.strerror})", errors)
    answer = bytearray()
    try:
        async with asyncio.timeout(patience_s), asyncio.TaskGroup() as tasks:
            tasks.create_task(_collect(process.stdout, answer, ANSWER_LIMIT))
            tasks.create_task(_collect_end(process.stderr, errors))
            code = await process.wait()
    except TimeoutError:
        return _failure(f"did not answer within {patience_s:g} s", errors)
    finally:
        await _end(process)
    if code != 0:
        return _failure(_ending(code), errors)
    try:
        return parse_report(answer.decode("utf-8", "replace"))
    except ValueError as error:
        return _failure(str(error), errors)


async def _end(process: asyncio.subprocess.Process) -> None:
    """By force, and with its pipes read to their end, so that nothing of it stays open."""
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(KILL_PATIENCE_S):
            await process.communicate()


async def _collect(stream: asyncio.StreamReader | None, into: bytearray, limit: int) -> None:
    """Everything up to `limit` bytes and one more; the rest is read and dropped."""
    assert stream is not None
    while chunk := await stream.read(65536):
        into += chunk[: max(0, limit + 1 - len(into))]


async def _collect_end(stream: asyncio.StreamReader | None, into: bytearray) -> None:
    assert stream is not None
    while chunk := await stream.read(65536):
        into += chunk
        del into[:-_KEPT_ERRORS]


def _ending(code: int) -> str:
    """How a process ended: a signal here, an NTSTATUS on Windows (0xC0000005)."""
    if code < 0:
        return f"crashed (signal {-code})"
    return f"crashed (0x{code:08X})" if code > 255 else f"ended with code {code}"


def _failure(what: str, errors: bytearray) -> DeviceReport:
    """A report without devices: what was being asked, and the last word of the child."""
    lines = [line.strip() for line in errors.decode("utf-8", "replace").splitlines()]
    asked = [line.removeprefix(ASKING) for line in lines if line.startswith(ASKING)]
    said = [line for line in lines if line and not line.startswith(ASKING)]
    where = f" while asking {asked[-1]}" if asked else ""
    last = f": {said[-1][:200]}" if said else ""
    culprit = asked[-1] if asked and asked[-1][:3] in ("CPU", "GPU", "NPU") else ""
    return DeviceReport("", (), f"the device probe {what}{where}{last}", culprit)


def parse_report(text: str) -> DeviceReport:
    """The child's line. Raises ValueError that ends the sentence "the probe ..."."""
    if not text.strip():
        raise ValueError("ended without an answer")
    if len(text) > ANSWER_LIMIT:
        raise ValueError("answered far too much")
    try:
        document = json.loads(text.strip().splitlines()[-1])
        devices = tuple(_facts(one) for one in document["devices"])
        return DeviceReport(_text(document["openvino"]), devices)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError("answered something unreadable") from error


def _facts(document: dict[str, Any]) -> DeviceFacts:
    """Checked: what a half-broken plugin says is no better than what a peer says."""
    name = _text(document["name"])
    full_name = _text(document.get("full_name", ""))
    told_type = _text(document.get("type", "")).upper()
    problems, capabilities = document["problems"], document.get("capabilities", [])
    if not isinstance(problems, dict) or not isinstance(capabilities, list):
        raise TypeError("no table or list where one belongs")
    return DeviceFacts(
        name=name,
        full_name=full_name or name,
        integrated="DISCRETE" not in told_type and "(DGPU)" not in full_name.upper(),
        capabilities=tuple(_text(one) for one in capabilities),
        memory=_count(document.get("memory", 0)),
        max_alloc=_count(document.get("max_alloc", 0)),
        problems=tuple(f"{_text(key)}: {_text(why)}" for key, why in problems.items()),
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return value[:300]


def _count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise TypeError("no count of bytes")
    return value
