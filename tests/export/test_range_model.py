from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

from meshinfer.errors import ShardCorrupt, StageFailed
from meshinfer.weights.assembly import LayerSpan
from meshinfer.weights.export.range_model import build, cut_config, load_config
from meshinfer.weights.export.tensors import CheckpointTensors, Tensor
from tests.export.tiny_checkpoints import ARCHITECTURES, make_checkpoint

pytestmark = pytest.mark.slow

LAYERS, STAND_IN = 5, 37


def simple_values(module: Any) -> dict[str, Any]:
    """What a module remembers of the configuration, but for its number."""
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, int | float | str | bool | None) and name != "layer_idx"
    }


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
@pytest.mark.parametrize("span", [LayerSpan(0, 1), LayerSpan(1, 4), LayerSpan(3, 5)], ids=str)
def test_layers_are_those_of_the_whole_model(
    architecture: str, span: LayerSpan, tmp_path: Path
) -> None:
    folder = make_checkpoint(tmp_path, architecture)
    tensors = CheckpointTensors.open(folder, LAYERS)
    part = build(load_config(folder), span, tensors.of_span(span), "F16", STAND_IN)
    whole = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float16)
    assert type(part) is type(whole)
    assert len(part.model.layers) == part.config.num_hidden_layers == span.end - span.first
    for number, layer in enumerate(part.model.layers):
        original = whole.model.layers[span.first + number]
        pairs = zip(layer.named_modules(), original.named_modules(), strict=True)
        for (name, own), (same, theirs) in pairs:
            assert name == same
            assert type(own) is type(theirs)
            assert simple_values(own) == simple_values(theirs), name
            if hasattr(own, "layer_idx"):
                assert own.layer_idx == number
        for name, weight in layer.named_parameters():
            assert torch.equal(weight, original.get_parameter(name)), name
    for name, buffer in part.named_buffers():
        assert torch.equal(buffer, whole.get_buffer(name)), name
    assert part.get_input_embeddings().weight.shape[0] == STAND_IN


def test_lists_of_the_configuration_are_cut_alike() -> None:
    config = SimpleNamespace(
        num_hidden_layers=5,
        layer_types=["a", "b", "c", "d", "e"],
        no_rope_layers=[1, 1, 1, 0, 1],
        mlp_only_layers=[0, 2, 4],
        eos_token_id=[1, 2, 3, 4, 5],
        architectures=["X"],
    )
    cut_config(config, LayerSpan(2, 5), 5)
    assert config.num_hidden_layers == 3
    assert config.layer_types == ["c", "d", "e"]
    assert config.no_rope_layers == [1, 0, 1]
    assert config.mlp_only_layers == [0, 2]
    assert config.eos_token_id == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("lack", "lacks .*layers 1-3 .*model.layers.0.self_attn.q_proj.weight"),
        ("shape", "do not fit|in another shape"),
        ("beside", "has beside .*model.layers.1.strange.weight"),
    ],
)
def test_tensors_that_do_not_fit_are_named(change: str, said: str, tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, "llama")
    span = LayerSpan(1, 3)
    tensors = CheckpointTensors.open(folder, LAYERS).of_span(span)
    name = "model.layers.0.self_attn.q_proj.weight"
    own = tensors.pop(name)
    if change == "shape":
        tensors[name] = Tensor(own.name, own.dtype, (32, 128), own.file, own.offset, own.size)
    if change == "beside":
        tensors[name] = own
        tensors["model.layers.1.strange.weight"] = own
    with pytest.raises(ShardCorrupt, match=said):
        build(load_config(folder), span, tensors, "F16", STAND_IN)


def test_a_file_that_shrinks_while_it_is_loaded_is_named(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, "llama")
    tensors = CheckpointTensors.open(folder, LAYERS).of_span(LayerSpan(0, 5))
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:200_000])
    with pytest.raises(ShardCorrupt, match="ends within"):
        build(load_config(folder), LayerSpan(0, 5), tensors, "F16", STAND_IN)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"model_type": "no_such_model"}', "cannot read"),
        ('{"model_type": "clip"}', "no causal language model of the type 'clip'"),
    ],
)
def test_what_transformers_does_not_know_is_refused(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(StageFailed, match=said):
        load_config(tmp_path)
