"""Which device a stage may use, and why not the others."""

from __future__ import annotations

import pytest

from meshinfer.mesh.device_choice import DeviceChoice
from meshinfer.mesh.device_report import DeviceFacts, DeviceReport

GB = 1_000_000_000
CPU = DeviceFacts("CPU", "A processor", True, ("BF16", "FP32"), 0, 0)
GPU = DeviceFacts("GPU.0", "A GPU (iGPU)", True, ("FP16", "FP32"), 16 * GB, 4 * GB)
CARD = DeviceFacts("GPU.1", "A card (dGPU)", False, ("FP16",), 12 * GB, 4 * GB)
NPU = DeviceFacts("NPU", "An NPU", True, (), GB, 0)
REPORT = DeviceReport("2026.4.1", (NPU, GPU, CPU, CARD))


def names(choice: DeviceChoice) -> list[str]:
    """Of the devices that a stage may use, preferred first."""
    return [one.name for one in choice.devices(8 * GB) if not one.note]


def test_the_cpu_serves_unless_the_gpu_is_asked_for() -> None:
    assert names(DeviceChoice(REPORT)) == ["CPU"]
    assert names(DeviceChoice(REPORT, "cpu")) == ["CPU"]
    assert names(DeviceChoice(REPORT, "npu")) == ["CPU"]
    assert names(DeviceChoice(REPORT, "gpu")) == ["GPU.0", "GPU.1", "CPU"]


def test_every_device_held_back_says_why() -> None:
    notes = {one.name: one.note for one in DeviceChoice(REPORT).devices(8 * GB)}
    assert notes == {
        "CPU": "",
        "GPU.0": "is not used unless this PC is started with --device gpu",
        "GPU.1": "is not used unless this PC is started with --device gpu",
        "NPU": "is not used yet: it runs fixed shapes only",
    }


def test_what_shares_the_memory_shares_the_budget() -> None:
    sizes = {one.name: one.memory for one in DeviceChoice(REPORT, "gpu").devices(8 * GB)}
    assert sizes == {"CPU": 8 * GB, "GPU.0": 8 * GB, "GPU.1": 12 * GB, "NPU": GB}


def test_bf16_only_where_the_cpu_has_it() -> None:
    plain = DeviceFacts("CPU", "An older processor", True, ("FP32", "FP16"), 0, 0)
    assert DeviceChoice(REPORT).devices(GB)[0].precisions == ("f32", "bf16")
    assert DeviceChoice(DeviceReport("x", (plain,))).devices(GB)[0].precisions == ("f32",)
    gpu = DeviceChoice(DeviceReport("x", (GPU,))).devices(GB)[0]
    assert gpu.precisions == ("f32", "f16")


def test_a_gpu_without_a_memory_figure_is_not_used() -> None:
    dumb = DeviceFacts("GPU.0", "A GPU", True, (), 0, 0, ("GPU_DEVICE_TOTAL_MEM_SIZE: no",))
    choice = DeviceChoice(DeviceReport("x", (dumb, CPU)), "gpu")
    assert names(choice) == ["CPU"]
    assert choice.devices(GB)[1].note == (
        "does not tell its memory (GPU_DEVICE_TOTAL_MEM_SIZE: no)"
    )


def test_a_device_that_broke_the_probe_is_listed_with_the_reason() -> None:
    report = DeviceReport("x", (CPU,), "the device probe crashed while asking GPU.0", "GPU.0")
    devices = DeviceChoice(report, "gpu").devices(GB)
    assert [one.name for one in devices] == ["CPU", "GPU.0"]
    assert devices[1].note == "the device probe crashed while asking GPU.0"
    assert devices[1].memory == 0


def test_a_device_that_failed_its_self_test_is_held_back() -> None:
    """C03: the PC goes on with its CPU and says so."""
    choice = DeviceChoice(REPORT, "gpu", (("GPU.0", "computed something else than the CPU"),))
    assert names(choice) == ["GPU.1", "CPU"]
    notes = {one.name: one.note for one in choice.devices(GB)}
    assert notes["GPU.0"] == "computed something else than the CPU"


def test_an_unknown_wish_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="'tpu' is none of auto, cpu, gpu, npu"):
        DeviceChoice(wanted="tpu")
