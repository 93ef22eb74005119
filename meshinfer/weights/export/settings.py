"""What a checkpoint's config.json says that decides how it is exported. No torch.

A folder enters, ModelSettings leave. Called by `run` before a child is started, and by the child.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshinfer.errors import ShardCorrupt, StageFailed
from meshinfer.weights.checkpoint import read_config

_ANOTHER = "Choose a text-only decoder model (a causal language model)."
_LAYER_COUNTS = ("num_hidden_layers", "n_layer", "num_layers")
_CONTEXTS = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length")
_OTHER_SENSES = ("vision_config", "audio_config", "speech_config", "thinker_config")
_SHARED_CACHE = "num_kv_shared_layers"


@dataclass(frozen=True, slots=True)
class ModelSettings:
    architecture: str  # transformers' model_type
    layers: int
    vocabulary: int
    context_length: int  # tokens; 0: not said
    is_tied: bool  # the head may be the embedding


def read_settings(folder: Path) -> ModelSettings:
    """Raises ShardCorrupt (nothing that makes sense), StageFailed (no model that can be exported
    by range: it sees or hears, has an encoder, brings its own code, or its layers share caches)."""
    config = read_config(folder)
    architecture = config.get("model_type")
    if not isinstance(architecture, str) or not architecture:
        raise ShardCorrupt("config.json does not name the model's type.", "Fetch it again.")
    _refuse(architecture, config)
    return ModelSettings(
        architecture=architecture,
        layers=_number(config, _LAYER_COUNTS),
        vocabulary=_number(config, ("vocab_size",)),
        context_length=_number(config, _CONTEXTS, default=0),
        is_tied=bool(config.get("tie_word_embeddings", False)),
    )


def _refuse(architecture: str, config: Mapping[str, Any]) -> None:
    found = [name for name in _OTHER_SENSES if config.get(name)]
    if found:
        raise StageFailed(
            f"The checkpoint is a {architecture} with {found[0].split('_')[0]}, which is not "
            "exported.",
            _ANOTHER,
        )
    if config.get("is_encoder_decoder"):
        raise StageFailed(f"The checkpoint is a {architecture} with an encoder.", _ANOTHER)
    if "quantization_config" in config:
        raise StageFailed(
            "The checkpoint's weights are quantised already, which the exporter does not read.",
            "Choose the original checkpoint (F16 or BF16), a GGUF or an OpenVINO IR of this model.",
        )
    if config.get(_SHARED_CACHE):
        raise StageFailed(
            f"The {architecture}'s last {config[_SHARED_CACHE]} layers read the caches of earlier "
            "ones, so that its layers cannot be exported by range.",
            "Take an OpenVINO IR of this model: it can be cut.",
        )
    if config.get("scale_attn_by_inverse_layer_idx"):
        raise StageFailed(
            f"The {architecture}'s attention is scaled by the number of the layer, so that its "
            "layers cannot be exported by range.",
            "Take an OpenVINO IR of this model: it can be cut.",
        )


def _number(config: Mapping[str, Any], names: tuple[str, ...], default: int | None = None) -> int:
    for name in names:
        value = config.get(name)
        if type(value) is int and value > 0:
            return value
    if default is None:
        raise ShardCorrupt(f"config.json does not say {names[0]}.", "Fetch it again.")
    return default
