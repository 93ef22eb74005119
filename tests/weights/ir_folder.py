"""A folder as the OpenVINO repositories of the hub have it: a tiny IR with its tokenizer, made by
the project's own reader of GGUF, and the small files of the exporter beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from meshinfer.weights.gguf import convert
from meshinfer.weights.progress import untold
from meshinfer.weights.recipe import Recipe, WeightFormat
from tests.weights.gguf_models import make_gguf

TEMPLATE = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '<|im_end|>' }}{% endfor %}"
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "max_position_embeddings": 512,
    "eos_token_id": 1,
    "bos_token_id": 0,
}
SETTINGS: dict[str, Any] = {
    "eos_token": "<|im_end|>",
    "chat_template": TEMPLATE,
    "added_tokens_decoder": {"0": {"content": "<|endoftext|>"}, "1": {"content": "<|im_end|>"}},
}


def make_ir_folder(folder: Path, template: str = TEMPLATE) -> Path:
    """`template` is in the tokenizer's IR and in tokenizer_config.json."""
    folder.mkdir(parents=True)
    source = folder.parent / f"{folder.name}.gguf"
    make_gguf(source, tokenizer__chat_template=template)
    convert(source, folder, Recipe(WeightFormat.ORIGINAL), untold)
    source.unlink()
    write_json(folder / "config.json", CONFIG)
    write_json(folder / "generation_config.json", {"eos_token_id": [1, 0]})
    write_json(folder / "tokenizer_config.json", {**SETTINGS, "chat_template": template})
    (folder / "README.md").write_text("# a model", encoding="utf-8")
    return folder


def write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")
