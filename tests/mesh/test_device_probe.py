"""The child's questions: one property that cannot be read does not hide the others."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from meshinfer.mesh.device_probe import ASKING, describe, kind_of


class StubType:
    """OpenVINO's enum value as Python sees it."""

    name = "INTEGRATED"


class StubCore:
    """A PC with devices of a table; a property that is missing raises as a plugin does."""

    def __init__(self, table: dict[str, dict[str, Any]]) -> None:
        self._table = table

    @property
    def available_devices(self) -> Sequence[str]:
        return list(self._table)

    def get_property(self, device_name: str, property: str) -> Any:
        if property not in self._table[device_name]:
            raise RuntimeError(f"Exception from core.cpp:268:\nno such property: {property}\n\n")
        return self._table[device_name][property]


PC = StubCore(
    {
        "CPU": {
            "FULL_DEVICE_NAME": "A processor",
            "DEVICE_TYPE": StubType(),
            "OPTIMIZATION_CAPABILITIES": ["FP32", "BF16"],
        },
        "GPU.0": {"FULL_DEVICE_NAME": "A GPU (iGPU)", "GPU_DEVICE_TOTAL_MEM_SIZE": 8_000_000_000},
        "NPU": {},
        "MYRIAD": {"FULL_DEVICE_NAME": "Of another age"},
    }
)


def test_every_known_device_is_described_and_told_beforehand() -> None:
    told: list[str] = []
    found = describe(PC, (), told.append)
    assert [one["name"] for one in found] == ["CPU", "GPU.0", "NPU"]
    assert told == ["the list of devices", "CPU", "GPU.0", "NPU"]
    assert found[0] == {
        "name": "CPU",
        "full_name": "A processor",
        "type": "INTEGRATED",
        "capabilities": ["BF16", "FP32"],
        "problems": {},
    }
    json.dumps(found)


def test_a_property_that_cannot_be_read_leaves_the_others() -> None:
    gpu = describe(PC, ("GPU",), lambda _: None)[0]
    assert gpu["memory"] == 8_000_000_000
    assert "max_alloc" not in gpu
    reason = gpu["problems"]["GPU_DEVICE_MAX_ALLOC_MEM_SIZE"]
    assert reason == "no such property: GPU_DEVICE_MAX_ALLOC_MEM_SIZE"


def test_only_the_kinds_that_were_asked_for() -> None:
    assert [one["name"] for one in describe(PC, ("CPU", "NPU"), lambda _: None)] == ["CPU", "NPU"]


def test_kinds() -> None:
    assert [kind_of(name) for name in ("CPU", "GPU.1", "npu")] == ["CPU", "GPU", "NPU"]


@pytest.mark.slow
@pytest.mark.openvino
async def test_the_real_probe_answers_with_one_line() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "meshinfer.mesh.device_probe",
        "cpu",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        answer, errors = await process.communicate()
    assert process.returncode == 0
    document = json.loads(answer)
    assert [one["name"] for one in document["devices"]] == ["CPU"]
    assert document["devices"][0]["problems"] == {}
    assert f"{ASKING}CPU" in errors.decode().splitlines()
