"""Options become OpenVINO properties, and what a plugin did instead is noticed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshinfer.core.configuration import (
    CACHE_PRECISIONS,
    GROUPS,
    PRECISIONS,
    REFERENCE,
    Configuration,
    default_configuration,
)
from meshinfer.engine.configuration import StageOptions, check_device, check_precision, properties
from meshinfer.errors import StageFailed, UsageError

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
        (StageOptions(precision="bf16"), 32),
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


configurations = st.builds(
    Configuration,
    st.sampled_from(PRECISIONS),
    st.sampled_from(GROUPS),
    st.sampled_from(CACHE_PRECISIONS),
    st.integers(0, 1024),
)


@given(configurations)
def test_a_configuration_comes_back_from_its_text(configuration: Configuration) -> None:
    assert Configuration.parse(str(configuration)) == configuration
    assert Configuration.parse(f"  {str(configuration).upper()}\n") == configuration


@pytest.mark.parametrize(
    ("text", "configuration"),
    [
        ("f32/128/u8/2", Configuration("f32", 128, "u8", 2)),
        ("f32/128/f32", Configuration("f32", 128, "f32")),
        ("bf16/0/bf16/0", Configuration("bf16", 0, "bf16")),
    ],
)
def test_texts_of_configurations(text: str, configuration: Configuration) -> None:
    assert Configuration.parse(text) == configuration


@pytest.mark.parametrize(
    "text",
    [
        "", "auto", "f32", "f32/128", "f32/128/f32/2/1", "f16/128/f32", "f32/100/f32",
        "f32/128/f16", "f32/-32/f32", "f32/128/f32/-1", "f32/128/f32/1025", "f32/128/f32/", 
        "f32/1e2/f32", "f32/١٢٨/f32", "f32/128/f32/999999",
    ],
)  # fmt: skip
def test_other_texts_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        Configuration.parse(text)
    assert caught.value.remedy


@given(configurations, st.sampled_from([0, 1, 4]))
def test_options_compute_as_they_are_configured(configuration: Configuration, limit: int) -> None:
    options = StageOptions(threads=limit).configured(configuration)
    chosen = properties(options)
    assert chosen["INFERENCE_PRECISION_HINT"] == configuration.precision
    assert chosen[GROUP] == configuration.group
    assert chosen["KV_CACHE_PRECISION"] == configuration.cache
    # A u8 cache by channel leaves a trace of rejected tokens.
    assert chosen.get("KEY_CACHE_QUANT_MODE") == {"u8": "BY_TOKEN"}.get(configuration.cache)
    threads = chosen.get("INFERENCE_NUM_THREADS", 0)
    assert threads == options.configuration.threads
    assert threads <= limit or not limit
    assert threads == configuration.threads or 0 < threads == limit


def test_options_without_more_are_the_default_configuration() -> None:
    for precision in PRECISIONS:
        options = StageOptions(precision=precision, threads=2)
        assert options.configuration == default_configuration(precision, 2)


def test_deterministic_mode_is_the_reference() -> None:
    options = StageOptions(deterministic=True, cache_precision="u8")
    assert options.configuration == REFERENCE
    assert properties(options)["KV_CACHE_PRECISION"] == "f32"
