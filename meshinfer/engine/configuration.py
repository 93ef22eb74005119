"""How a stage is compiled: our options in, OpenVINO properties out, and the check that they held.

The figures behind the defaults are in the design notes: on CPU, f32 with dynamic quantisation of
activations in groups of 128 and an f32 cache is both faster and more accurate than the plugin's own
choice (bf16 with a u8 cache). A cache that is quantised by channel is not safe to rewind, so a u8
cache has its keys quantised by token. Calibration may find a better configuration for a device.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from meshinfer.core.configuration import (
    DEFAULT_GROUPS,
    PRECISIONS,
    REFERENCE,
    Configuration,
)
from meshinfer.engine.compiled_cache import CompiledCache
from meshinfer.engine.openvino_error import openvino_errors
from meshinfer.errors import StageFailed


@dataclass(frozen=True, slots=True)
class StageOptions:
    """What the plan and this PC decide about one stage.

    `deterministic` promises that the answer does not depend on how tokens are grouped into steps:
    f32, no dynamic quantisation, and fixed shapes (engine.lockstep).
    `dynamic_quantization_group_size` None leaves the choice to us; 0 switches it off.
    `cache_precision` empty: as the computation.
    `trees` off leaves token trees out of the compiled graph. In deterministic mode they are anyway,
    and on any device but the CPU: a GPU lays keys out transposed, and what is accepted of a tree
    could not be moved together there (intel_gpu, paged_attention.hpp).
    """

    device: str = "CPU"
    precision: str = "f32"  # or "bf16": computation, ports and, by itself, the cache
    cache_tokens: int = 4096  # room for all sequences together; rounded up to whole blocks
    threads: int = 0  # 0: as many as the PC has
    deterministic: bool = False
    dynamic_quantization_group_size: int | None = None
    cache_precision: str = ""
    compiled: CompiledCache | None = None  # where compiled stages are kept; None: nowhere
    trees: bool = True

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise StageFailed(
                f"Precision '{self.precision}' is not offered.", "Choose f32 or bf16."
            )
        if self.deterministic and self.precision != "f32":
            raise StageFailed(
                "Deterministic mode computes in f32 only.", "Choose f32 or switch it off."
            )
        if self.cache_tokens < 1:
            raise StageFailed("A stage needs room for at least one token in its cache.")

    @property
    def has_trees(self) -> bool:
        """Whether a stage with attention should be compiled for token trees."""
        return self.trees and not self.deterministic and self.device.startswith("CPU")

    @property
    def configuration(self) -> Configuration:
        """How a stage with these options computes, on a CPU."""
        if self.deterministic:
            return replace(REFERENCE, threads=self.threads)
        group = self.dynamic_quantization_group_size
        return Configuration(
            precision=self.precision,
            group=DEFAULT_GROUPS[self.precision] if group is None else group,
            cache=self.cache_precision or self.precision,
            threads=self.threads,
        )

    def configured(self, configuration: Configuration) -> StageOptions:
        """These options with another configuration. Its threads never exceed ours, where we have a
        limit: that is the owner's."""
        allowed = [limit for limit in (self.threads, configuration.threads) if limit]
        return replace(
            self,
            precision=configuration.precision,
            dynamic_quantization_group_size=configuration.group,
            cache_precision=configuration.cache,
            threads=min(allowed, default=0),
        )


def properties(options: StageOptions) -> dict[str, Any]:
    """For `Core.compile_model`."""
    chosen: dict[str, Any] = {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
        "INFERENCE_PRECISION_HINT": options.precision,
    }
    if options.device.startswith("GPU"):
        # The GPU plugin's cache is f16 or quantised; f16 switches quantisation off, and with it the
        # loss on rewinding.
        return {**chosen, "KV_CACHE_PRECISION": "f16"}
    configuration = options.configuration
    chosen["KV_CACHE_PRECISION"] = configuration.cache
    if configuration.cache == "u8":
        # By channel, the plugin's default, a block's keys are quantised anew as tokens come: what
        # was rejected would leave a trace (0.96 in the logits, measured on OpenVINO 2026.4.1).
        chosen["KEY_CACHE_QUANT_MODE"] = "BY_TOKEN"
    chosen["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = configuration.group
    # Several stage processes of one PC would all pin their threads to the same first cores, and
    # the owner's programs would have to go around them.
    chosen["ENABLE_CPU_PINNING"] = False
    if configuration.threads:
        chosen["INFERENCE_NUM_THREADS"] = configuration.threads
    return chosen


def check_device(core: Any, options: StageOptions) -> None:
    """Raises StageFailed when the device is missing or cannot compute in the wanted precision."""
    remedy = "Run `meshinfer status` there: it says what each PC can."
    with openvino_errors(f"Asking for device {options.device}", remedy):
        capabilities = core.get_property(options.device, "OPTIMIZATION_CAPABILITIES")
    if options.precision == "bf16" and "BF16" not in capabilities:
        raise StageFailed(
            f"{options.device} cannot compute in bf16 (it offers {', '.join(capabilities)}).",
            "Plan with f32.",
        )


def check_options(options: StageOptions) -> None:
    """Whether a stage with these options can run on this PC. Raises StageFailed that says why."""
    import openvino as ov

    check_device(ov.Core(), options)


def check_precision(compiled: Any, options: StageOptions) -> None:
    """Raises StageFailed when the plugin computes in another precision than we asked for.

    Ports between stages carry the precision of the computation: another one would make a split
    model differ from the whole.
    """
    with openvino_errors("Reading the precision back", "Use another device."):
        actual = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
    wanted = {"f32": "f32", "bf16": "bf16"}[options.precision]
    if actual != wanted:
        raise StageFailed(
            f"{options.device} computes in {actual} although {wanted} was asked for.",
            f"Plan with {actual} or use another device.",
        )
