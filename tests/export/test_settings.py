from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from meshinfer.errors import MeshInferError, ShardCorrupt, StageFailed
from meshinfer.weights.export.settings import read_settings
from tests.export.checkpoint_folder import CONFIG, write_checkpoint


def test_the_sizes_are_read(tmp_path: Path) -> None:
    found = read_settings(write_checkpoint(tmp_path, tie_word_embeddings=True))
    assert (found.architecture, found.layers, found.vocabulary) == ("llama", 3, 10)
    assert found.context_length == 64
    assert found.is_tied


@pytest.mark.parametrize(
    ("config", "kind", "said"),
    [
        ({"model_type": None}, ShardCorrupt, "model's type"),
        ({"num_hidden_layers": 0}, ShardCorrupt, "num_hidden_layers"),
        ({"num_hidden_layers": "3"}, ShardCorrupt, "num_hidden_layers"),
        ({"vocab_size": None}, ShardCorrupt, "vocab_size"),
        ({"model_type": "gemma3", "vision_config": {"x": 1}}, StageFailed, "gemma3 with vision"),
        ({"is_encoder_decoder": True}, StageFailed, "encoder"),
        ({"quantization_config": {"quant_method": "gptq"}}, StageFailed, "quantised already"),
        ({"num_kv_shared_layers": 2}, StageFailed, "read the caches of earlier"),
        ({"scale_attn_by_inverse_layer_idx": True}, StageFailed, "number of the layer"),
    ],
)
def test_what_cannot_be_exported_is_named(
    tmp_path: Path, config: dict[str, Any], kind: type[MeshInferError], said: str
) -> None:
    write_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, **config}))
    with pytest.raises(kind, match=said):
        read_settings(tmp_path)


def test_a_folder_without_config_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ShardCorrupt, match="config.json"):
        read_settings(tmp_path)
