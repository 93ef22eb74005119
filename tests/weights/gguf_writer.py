"""GGUF files for tests, by the book (ggml, docs/gguf.md): the header, and no tensor data."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

F32, Q4_0, Q5_0 = 0, 2, 6
Tensor = tuple[str, Sequence[int], int]

LLAMA: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.context_length": 2048,
    "llama.rope.freq_base": 10000.0,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", "hello", "<|im_end|>"],
    "tokenizer.ggml.token_type": [2, 3, 3, 1, 3],
    "tokenizer.chat_template": "{{ message['content'] + '<|im_end|>' }}",
}


def gguf_bytes(
    metadata: Mapping[str, Any], tensors: Sequence[Tensor] = (), version: int = 3
) -> bytes:
    parts = [b"GGUF", struct.pack("<IQQ", version, len(tensors), len(metadata))]
    for key, value in metadata.items():
        parts += [_string(key), _value(value)]
    for name, shape, kind in tensors:
        parts += [_string(name), struct.pack("<I", len(shape))]
        parts += [struct.pack("<Q", extent) for extent in shape]
        parts.append(struct.pack("<IQ", kind, 0))
    return b"".join(parts)


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    kind, data = _typed(value)
    return struct.pack("<I", kind) + data


def _typed(value: Any) -> tuple[int, bytes]:
    match value:
        case bool():
            return 7, struct.pack("<?", value)
        case int():
            return 4, struct.pack("<I", value)
        case float():
            return 6, struct.pack("<f", value)
        case str():
            return 8, _string(value)
        case _:
            kinds = [_typed(one) for one in value]
            kind = kinds[0][0] if kinds else 4
            body = b"".join(data for _, data in kinds)
            return 9, struct.pack("<IQ", kind, len(kinds)) + body
