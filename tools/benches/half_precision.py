"""A half-precision safetensors checkpoint, as the hub has them, made from a GGUF that we can get.

    python -m tools.benches.half_precision FILE.gguf FOLDER

The weights are the GGUF's, dequantised to F16; the tokenizer is built from its vocabulary, with the
split of text that its kind has. Memory follows a few rows. Used by bench and tests of the export.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from meshinfer.weights.gguf_file import GgufFile, Place, open_gguf

_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ENDS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CONTROL, _USER_DEFINED = 3, 4


def make_half(gguf: Path, folder: Path) -> Path:
    """A checkpoint of a llama or qwen2 in `folder`; nothing is done when it is there already."""
    weights = folder / "model.safetensors"
    if weights.is_file():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    file = open_gguf(gguf)
    (folder / "config.json").write_text(json.dumps(_config(file), indent=1))
    _save_tokenizer(file, folder)
    scratch = folder / "model.new"
    _write_weights(file, scratch)
    scratch.replace(weights)
    return folder


def _config(file: GgufFile) -> dict[str, Any]:
    header = file.header

    def of(key: str) -> Any:
        return header.of_architecture(key)

    name = {"llama": "Llama", "qwen2": "Qwen2"}[header.architecture]
    return {
        "architectures": [f"{name}ForCausalLM"],
        "model_type": header.architecture,
        "dtype": "float16",
        "hidden_size": of("embedding_length"),
        "intermediate_size": of("feed_forward_length"),
        "num_hidden_layers": of("block_count"),
        "num_attention_heads": of("attention.head_count"),
        "num_key_value_heads": of("attention.head_count_kv"),
        "max_position_embeddings": of("context_length"),
        "rms_norm_eps": of("attention.layer_norm_rms_epsilon"),
        "rope_theta": of("rope.freq_base"),
        "hidden_act": "silu",
        "tie_word_embeddings": "output.weight" not in file.places,
        "vocab_size": file.places["token_embd.weight"].rows,
        "bos_token_id": header.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": header.metadata["tokenizer.ggml.eos_token_id"],
    }


def _write_weights(file: GgufFile, path: Path) -> None:
    table: dict[str, Any] = {}
    place = 0
    chosen = sorted(file.places.items())
    for name, one in chosen:
        shape = list(reversed(one.info.shape))
        end = place + 2 * one.rows * one.columns
        table[_name(name)] = {"dtype": "F16", "shape": shape, "data_offsets": [place, end]}
        place = end
    text = json.dumps({"__metadata__": {"format": "pt"}, **table}).encode()
    with path.open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for name, one in chosen:
            for data in _half(file, name, one):
                out.write(data)


def _name(gguf: str) -> str:
    stem, _, kind = gguf.rpartition(".")
    if not stem.startswith("blk."):
        return f"{_ENDS[stem]}.{kind}"
    _, layer, part = stem.split(".")
    return f"model.layers.{layer}.{_NAMES[part]}.{kind}"


def _half(file: GgufFile, name: str, place: Place) -> Iterator[bytes]:
    header = file.header
    heads = {"attn_q": "attention.head_count", "attn_k": "attention.head_count_kv"}
    part = name.rpartition(".")[0].rpartition(".")[2]
    if header.architecture != "llama" or part not in heads:
        for _, values in place.blocks():
            yield values.astype(np.float16).tobytes()
        return
    # llama.cpp keeps the two halves of a head's rotary dimensions interleaved.
    values = place.values()
    count = header.of_architecture(heads[part])
    pairs = values.reshape(count, len(values) // count // 2, 2, -1)
    yield pairs.swapaxes(1, 2).astype(np.float16).tobytes()


def _save_tokenizer(file: GgufFile, folder: Path) -> None:
    """A byte-level BPE with the split of SmolLM or Qwen2."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    data = {key.removeprefix("tokenizer."): value for key, value in file.header.metadata.items()}
    tokens = data["ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in data["ggml.merges"]]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    splits = {
        "smollm": pre_tokenizers.Digits(individual_digits=True),
        "qwen2": pre_tokenizers.Split(Regex(_QWEN_SPLIT), "isolated"),
    }
    kind = data["ggml.pre"]
    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=kind == "smollm")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([splits[kind], bytes_of])
    tokenizer.decoder = decoders.ByteLevel()
    for token, token_kind in zip(tokens, data["ggml.token_type"], strict=True):
        if token_kind in (_CONTROL, _USER_DEFINED):
            is_special = token_kind == _CONTROL
            tokenizer.add_tokens([AddedToken(token, special=is_special, normalized=False)])
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=tokens[data["ggml.eos_token_id"]],
        bos_token=tokens[data["ggml.bos_token_id"]],
        chat_template=data["chat_template"],
        clean_up_tokenization_spaces=False,
    ).save_pretrained(folder)


if __name__ == "__main__":
    from meshinfer.weights.export.torchvision_guard import hide_torchvision

    hide_torchvision()
    print(make_half(Path(sys.argv[1]), Path(sys.argv[2])))
