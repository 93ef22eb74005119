"""Options become OpenVINO properties, and what a plugin did instead is noticed."""

from __future__ import annotations

from typing import Any

import pytest

from meshinfer.engine.configuration import StageOptions, check_device, check_precision, properties
from meshinfer.errors import StageFailed

GROUP = "DYNAMIC_QUANTIZATION_GROUP_SIZE"


class Plugin:
    """A core and a compiled model in one: it knows some properties."""

    def __init__(self, **known: Any) -> None:
        self._known = known

    def get_property(self, *names: str) -> Any:
        try:
            return self._known[names[-1]]
        except KeyError:
            raise RuntimeError(
                f"Exception from core.cpp:1:\nNo {names[-1]} on {names[0]}"
            ) from None


class ElementType:
    def __init__(self, name: str) -> None:
        self._name = name

    def get_type_name(self) -> str:
        return self._name


@pytest.mark.parametrize(
    ("options", "group"),
    [
        (StageOptions(), 128),
        (StageOptions(deterministic=True), 0),
        (StageOptions(deterministic=True, dynamic_quantization_group_size=32), 0),
        (StageOptions(dynamic_quantization_group_size=0), 0),
        (StageOptions(precision="bf16", dynamic_quantization_group_size=32), 32),
        (StageOptions(precision="bf16"), None),
    ],
)
def test_dynamic_quantization(options: StageOptions, group: int | None) -> None:
    assert properties(options).get(GROUP) == group


@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_computation_and_cache_have_one_precision(precision: str) -> None:
    chosen = properties(StageOptions(precision=precision))
    assert chosen["INFERENCE_PRECISION_HINT"] == precision
    assert chosen["KV_CACHE_PRECISION"] == precision


def test_threads_are_set_only_when_they_are_given() -> None:
    assert "INFERENCE_NUM_THREADS" not in properties(StageOptions())
    assert properties(StageOptions(threads=3))["INFERENCE_NUM_THREADS"] == 3


def test_a_gpu_gets_an_unquantised_cache_and_no_cpu_properties() -> None:
    chosen = properties(StageOptions(device="GPU.1", threads=4))
    assert chosen["KV_CACHE_PRECISION"] == "f16"
    assert not {"INFERENCE_NUM_THREADS", "ENABLE_CPU_PINNING", GROUP} & set(chosen)


@pytest.mark.parametrize(
    "wrong",
    [
        {"precision": "f16"},
        {"precision": "bf16", "deterministic": True},
        {"cache_tokens": 0},
    ],
)
def test_options_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(StageFailed):
        StageOptions(**wrong)


def test_a_device_without_bf16_is_refused() -> None:
    core = Plugin(OPTIMIZATION_CAPABILITIES=["FP32", "INT8"])
    check_device(core, StageOptions())
    with pytest.raises(StageFailed, match="bf16"):
        check_device(core, StageOptions(precision="bf16"))
    check_device(Plugin(OPTIMIZATION_CAPABILITIES=["BF16"]), StageOptions(precision="bf16"))


def test_a_missing_device_is_named() -> None:
    with pytest.raises(StageFailed, match=r"GPU\.3 failed: No OPTIMIZATION_CAPABILITIES"):
        check_device(Plugin(), StageOptions(device="GPU.3"))


def test_another_precision_than_asked_for_is_refused() -> None:
    compiled = Plugin(INFERENCE_PRECISION_HINT=ElementType("f32"))
    check_precision(compiled, StageOptions())
    with pytest.raises(StageFailed, match="computes in f32 although bf16"):
        check_precision(compiled, StageOptions(precision="bf16"))
