"""A torch model of a span becomes an ov.Model file, through optimum-intel's exporter.

Called by the child. The IR holds the weights in their own type (half precision stays), a stateful
key-value cache reordered by `beam_idx`, and the stand-ins for embedding and head.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from meshinfer.errors import StageFailed
from meshinfer.weights.recipe import Recipe, WeightFormat

TASK = "text-generation-with-past"
_ANOTHER = "Choose a GGUF or an OpenVINO IR of this model."
_PROVED = {"gemma": "5.5.", "gemma2": "5.5.", "gemma3_text": "5.5."}
"""optimum-intel 2.2 shuts these out for transformers above 5.0. With this version our tests show
that what is exported computes what transformers does."""
_FLOATING = (WeightFormat.F16, WeightFormat.BF16, WeightFormat.ORIGINAL)


def refuse_unsupported(architecture: str) -> None:
    """Raises StageFailed naming the architecture: optimum-intel does not know it, or not with the
    transformers that is installed."""
    from optimum.exporters.tasks import TasksManager
    from optimum.intel.utils.import_utils import is_transformers_version
    from transformers import __version__ as installed

    _register_exporters()
    try:
        constructor = TasksManager.get_exporter_config_constructor(
            "openvino", task=TASK, model_type=architecture, library_name="transformers"
        )
    except (KeyError, ValueError):
        raise StageFailed(
            f"optimum-intel does not export models of the type '{architecture}'.", _ANOTHER
        ) from None
    kind = getattr(constructor, "func", constructor)
    if installed.startswith(_PROVED.get(architecture, "none")):
        kind.MAX_TRANSFORMERS_VERSION = None
    for name, sign, beyond in (("MAX", "<=", ">"), ("MIN", ">=", "<")):
        bound = getattr(kind, f"{name}_TRANSFORMERS_VERSION", None)
        if bound is not None and is_transformers_version(beyond, str(bound)):
            raise StageFailed(
                f"optimum-intel exports '{architecture}' with transformers {sign} {bound} only, "
                f"and {installed} is installed.",
                _ANOTHER,
            )


def export_graph(model: Any, folder: Path, recipe: Recipe) -> Path:
    """The path of the IR's XML, written into `folder`. Raises StageFailed."""
    import torch
    from optimum.exporters.openvino import export_from_model
    from optimum.intel.openvino import OVConfig

    _register_exporters()
    half = next(iter(model.parameters())).dtype in (torch.float16, torch.bfloat16)
    options = None
    if recipe.format not in _FLOATING:
        # Only said: nothing is compressed here. Without it the exporter notes for devices that
        # the weights are plain, and the cache of a device would follow.
        options = OVConfig(dtype="fp32", quantization_config={"bits": 8, "weight_only": True})
    try:
        export_from_model(
            model,
            output=folder,
            task=TASK,
            stateful=True,
            patch_16bit_model=half,
            ov_config=options,
        )
    except (RuntimeError, ValueError, TypeError, AttributeError, KeyError, IndexError) as error:
        raise StageFailed(
            f"optimum-intel could not export a {model.config.model_type}: {_reason(error)}",
            _ANOTHER,
        ) from error
    return folder / "openvino_model.xml"


def _register_exporters() -> None:
    """Importing it makes the exporter's table of architectures."""
    import optimum.exporters.openvino.model_configs  # noqa: F401


def _reason(error: BaseException) -> str:
    """The line that matters: OpenVINO's converter puts advice around it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if "Exception:" in lines[:-1]:
        return lines[lines.index("Exception:") + 1][:300]
    return lines[-1][:300] if lines else type(error).__name__
