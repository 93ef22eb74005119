"""Tiny but whole GGUF models with random weights, for the reader and the conversion."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from meshinfer.weights.gguf_writer import TensorToWrite, write_gguf

HIDDEN, FEED_FORWARD, HEADS, HEADS_KV, HEAD_SIZE, VOCABULARY = 64, 96, 4, 2, 16, 80
F32, F16, Q4_0, Q4_1, Q5_0, Q8_0 = 0, 1, 2, 3, 6, 8


def metadata(architecture: str = "llama", layers: int = 3, **changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "general.architecture": architecture,
        "general.file_type": 15,
        f"{architecture}.block_count": layers,
        f"{architecture}.context_length": 512,
        f"{architecture}.embedding_length": HIDDEN,
        f"{architecture}.feed_forward_length": FEED_FORWARD,
        f"{architecture}.attention.head_count": HEADS,
        f"{architecture}.attention.head_count_kv": HEADS_KV,
        f"{architecture}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{architecture}.rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": _vocabulary(),
        "tokenizer.ggml.token_type": [3] * 2 + [1] * (VOCABULARY - 2),
        "tokenizer.ggml.merges": ["a b", "ab c"],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.chat_template": "{{ messages[0]['content'] + '<|im_end|>' }}",
    }
    renamed = {key.replace("__", "."): value for key, value in changes.items()}
    return {key: value for key, value in {**values, **renamed}.items() if value is not None}


def shapes(architecture: str = "llama", layers: int = 3, tied: bool = True) -> dict[str, Any]:
    """Name -> (columns, rows) or (size,), as in a GGUF."""
    found: dict[str, tuple[int, ...]] = {"token_embd.weight": (HIDDEN, VOCABULARY)}
    for layer in range(layers):
        keys = HEADS_KV * HEAD_SIZE
        matrices = {
            "attn_q": (HIDDEN, HEADS * HEAD_SIZE),
            "attn_k": (HIDDEN, keys),
            "attn_v": (HIDDEN, keys),
            "attn_output": (HEADS * HEAD_SIZE, HIDDEN),
            "ffn_gate": (HIDDEN, FEED_FORWARD),
            "ffn_up": (HIDDEN, FEED_FORWARD),
            "ffn_down": (FEED_FORWARD, HIDDEN),
        }
        vectors = {"attn_norm": (HIDDEN,), "ffn_norm": (HIDDEN,)}
        if architecture == "qwen3":
            vectors |= {"attn_q_norm": (HEAD_SIZE,), "attn_k_norm": (HEAD_SIZE,)}
        for name, shape in {**matrices, **vectors}.items():
            found[f"blk.{layer}.{name}.weight"] = shape
        if architecture == "qwen2":
            for name in ("attn_q", "attn_k", "attn_v"):
                found[f"blk.{layer}.{name}.bias"] = matrices[name][1:]
    found["output_norm.weight"] = (HIDDEN,)
    if not tied:
        found["output.weight"] = (HIDDEN, VOCABULARY)
    return found


def make_gguf(
    path: Path,
    architecture: str = "llama",
    layers: int = 3,
    tied: bool = True,
    kinds: Mapping[str, int] | None = None,
    **changes: Any,
) -> dict[str, NDArray[Any]]:
    """Writes the model; `kinds` maps parts of names to types of matrices (default Q4_0). Returns
    the real values that the file holds."""
    random = np.random.default_rng(7)
    values, tensors = {}, []
    for name, shape in shapes(architecture, layers, tied).items():
        real = random.standard_normal(shape[::-1]).astype(np.float32) * 0.1
        if len(shape) == 1:
            real += 1 if "norm" in name else 0
            kind = F32
        else:
            fitting = [kind for part, kind in (kinds or {}).items() if part in name]
            kind = fitting[0] if fitting else Q4_0
        data, values[name] = packed(real, kind)
        tensors.append(TensorToWrite(name, shape, kind, partial(_once, data)))
    write_gguf(path, metadata(architecture, layers, **changes), tensors)
    return values


def packed(real: NDArray[Any], kind: int) -> tuple[bytes, NDArray[Any]]:
    """Bytes in the type, and the values that they stand for."""
    if kind == F32:
        return real.tobytes(), real
    if kind == F16:
        half = real.astype(np.float16)
        return half.tobytes(), half.astype(np.float32)
    data = gguf.quants.quantize(real, gguf.GGMLQuantizationType(kind))
    return data.tobytes(), gguf.quants.dequantize(data, gguf.GGMLQuantizationType(kind))


def _once(data: bytes) -> Iterable[bytes]:
    yield data


def _vocabulary() -> list[str]:
    letters = [chr(number) for number in range(33, 33 + VOCABULARY - 4)]
    return ["<|endoftext|>", "<|im_end|>", *letters, "ab", "abc"]
