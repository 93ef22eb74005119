"""Whatever the probe does, the agent gets a report and a sentence (W07)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys

import psutil
import pytest

from meshinfer.mesh.device_report import DeviceFacts, ask_devices, parse_report

CPU_LINE = json.dumps(
    {
        "openvino": "2026.4.1",
        "devices": [
            {
                "name": "CPU",
                "full_name": "A processor",
                "type": "INTEGRATED",
                "capabilities": ["FP32"],
                "problems": {},
            }
        ],
    }
)

CPU_ANSWERS = f"""
import sys
if sys.argv[1:] == ["CPU"]:
    print({CPU_LINE!r})
    sys.exit(0)
"""
"""A stub that behaves when only the CPU is asked."""

ASKS_GPU = 'sys.stderr.write("asking GPU.0\\n"); sys.stderr.flush()\n'


def stub(rest: str, cpu_answers: bool = True) -> tuple[str, ...]:
    """A device stub: a child that does `rest` when it is asked about everything."""
    return (sys.executable, "-c", (CPU_ANSWERS if cpu_answers else "import sys\n") + rest)


ABORTS = "import os; os.abort()"
HANGS = "import threading; threading.Event().wait()"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rest", "reason"),
    [
        (ASKS_GPU + "sys.exit(0)", "ended without an answer while asking GPU.0"),
        (ASKS_GPU + "sys.exit(3)", "ended with code 3 while asking GPU.0"),
        (ASKS_GPU + "print('ProgramBuilder build failed')", "answered something unreadable"),
        (ASKS_GPU + "raise RuntimeError('driver is broken')", "RuntimeError: driver is broken"),
        (ASKS_GPU + "sys.stdout.write('x' * 3_000_000)", "answered far too much"),
        (ASKS_GPU + "print('{' * 100_000)", "answered something unreadable"),
        (ASKS_GPU + ABORTS, "crashed ("),
    ],
)
async def test_a_probe_that_fails_on_the_gpu_still_gives_the_cpu(rest: str, reason: str) -> None:
    report = await ask_devices(stub(rest), 30.0)
    assert report.has_cpu
    assert report.openvino == "2026.4.1"
    assert reason in report.problem
    assert report.culprit == "GPU.0"


@pytest.mark.slow
async def test_a_probe_that_hangs_is_ended() -> None:
    report = await ask_devices(stub(ASKS_GPU + HANGS), 1.0)
    assert report.has_cpu
    assert "did not answer within 1 s while asking GPU.0" in report.problem


@pytest.mark.slow
async def test_a_probe_that_floods_is_ended_and_leaves_nothing_open() -> None:
    """Its pipes are full when it is killed: they must be read to their end."""
    report = await ask_devices(stub("while True: print('x' * 1000)"), 1.0)
    assert report.has_cpu
    assert "did not answer within 1 s" in report.problem
    assert report.culprit == ""


@pytest.mark.slow
async def test_no_child_is_left_when_the_answer_comes() -> None:
    """Not even one that is killed but not yet waited for: the last child is the one that hangs."""
    before = psutil.Process().children()
    report = await ask_devices(stub(HANGS, cpu_answers=False), 0.5)
    assert psutil.Process().children() == before
    assert "did not answer within 0.5 s" in report.problem


@pytest.mark.slow
async def test_a_cpu_that_cannot_be_asked_either() -> None:
    report = await ask_devices(stub("sys.exit(1)", cpu_answers=False), 30.0)
    assert not report.has_cpu
    assert report.devices == ()
    assert report.culprit == "CPU"
    assert report.problem == (
        "the CPU could not be asked either: the device probe ended with code 1"
    )


async def test_a_probe_that_cannot_be_started() -> None:
    report = await ask_devices(("./no-such-program",), 5.0)
    assert report.devices == ()
    assert "could not be started" in report.problem


@pytest.mark.slow
async def test_cancelling_the_question_ends_the_child() -> None:
    """The child holds a connection to this test: it breaks when the child is gone."""
    connected: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
    server = await asyncio.start_server(
        lambda *streams: connected.put_nowait(streams), "127.0.0.1", 0
    )
    port = server.sockets[0].getsockname()[1]
    holds = f"import socket; held = socket.create_connection(('127.0.0.1', {port}))\n"
    async with server, asyncio.timeout(30):
        asked = asyncio.create_task(ask_devices(stub(holds + HANGS), 60.0))
        reader, writer = await connected.get()
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()


@pytest.mark.slow
@pytest.mark.openvino
async def test_the_real_probe_knows_this_cpu() -> None:
    report = await ask_devices(patience_s=60.0)
    assert report.problem == ""
    assert report.has_cpu
    assert report.openvino


def test_a_report_is_read_with_every_figure() -> None:
    document = {
        "openvino": "2026.4.1",
        "devices": [
            {
                "name": "GPU.0",
                "full_name": "A GPU (iGPU)",
                "type": "INTEGRATED",
                "capabilities": ["FP16"],
                "memory": 8,
                "max_alloc": 4,
                "problems": {"GPU_THING": "no"},
            }
        ],
    }
    assert parse_report(json.dumps(document)).devices == (
        DeviceFacts("GPU.0", "A GPU (iGPU)", True, ("FP16",), 8, 4, ("GPU_THING: no",)),
    )


@pytest.mark.parametrize(
    ("full_name", "told", "integrated"),
    [
        ("Intel(R) Arc(TM) A770 Graphics (dGPU)", "", False),
        ("Intel(R) Arc(TM) A770 Graphics", "DISCRETE", False),
        ("Intel(R) Arc(TM) 140V GPU (iGPU)", "", True),
        ("A GPU that does not say", "", True),
    ],
)
def test_integrated_or_not(full_name: str, told: str, integrated: bool) -> None:
    device = {"name": "GPU.0", "full_name": full_name, "type": told, "problems": {}}
    line = json.dumps({"openvino": "x", "devices": [device]})
    assert parse_report(line).devices[0].integrated is integrated


@pytest.mark.parametrize(
    "line",
    [
        "[]",
        "null",
        "{}",
        '{"openvino": 3, "devices": []}',
        '{"openvino": "x", "devices": [{}]}',
        '{"openvino": "x", "devices": [{"name": 7, "problems": {}}]}',
        '{"openvino": "x", "devices": [{"name": "CPU", "problems": []}]}',
        '{"openvino": "x", "devices": [{"name": "GPU", "problems": {}, "memory": -1}]}',
        '{"openvino": "x", "devices": [{"name": "GPU", "problems": {}, "memory": 1.5}]}',
        '{"openvino": "x", "devices": [{"name": "GPU", "problems": {}, "memory": true}]}',
        '{"openvino": "x", "devices": [{"name": "CPU", "problems": {}, "capabilities": 3}]}',
        '{"openvino": "x", "devices": [{"name": "CPU", "problems": {}, "capabilities": "BF16"}]}',
    ],
)
def test_a_line_of_another_shape_is_unreadable(line: str) -> None:
    with pytest.raises(ValueError, match="unreadable"):
        parse_report(line)
