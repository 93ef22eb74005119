"""C07: end tokens from every source; templates and context lengths as folders have them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from meshinfer.errors import ShardCorrupt, StageFailed
from meshinfer.weights.folder_facts import read_folder_facts
from tests.weights.ir_folder import write_json

CONFIG = {"model_type": "llama", "max_position_embeddings": 4096}
ADDED = {"2": {"content": "</s>"}, "7": {"content": "<|im_end|>"}, "9": {"content": "<|eot|>"}}
TEMPLATE = "{{ m['content'] + '<|eot|>' }}"


def _folder(folder: Path, **files: Any) -> Path:
    for name, content in files.items():
        write_json(folder / f"{name}.json", content)
    return folder


@pytest.mark.parametrize(
    ("files", "tokenizer", "stops"),
    [
        ({"config": {**CONFIG, "eos_token_id": 2}}, {}, (2,)),
        ({"config": {**CONFIG, "eos_token_id": [2, 7]}}, {}, (2, 7)),
        ({"config": CONFIG, "generation_config": {"eos_token_id": [5]}}, {}, (5,)),
        ({"config": {**CONFIG, "eos_token_id": 2}, "generation_config": {"eos_token_id": 5}}, {},
         (2, 5)),
        ({"config": CONFIG}, {"eos_token_id": "3"}, (3,)),
        ({"config": {**CONFIG, "text_config": {"eos_token_id": 4}}}, {}, (4,)),
        ({"config": CONFIG,
          "tokenizer_config": {"eos_token": "</s>", "added_tokens_decoder": ADDED}}, {}, (2, 7)),
        ({"config": CONFIG,
          "tokenizer_config": {"eos_token": {"content": "</s>"}, "added_tokens_decoder": ADDED,
                               "chat_template": TEMPLATE}}, {}, (2, 7, 9)),
        ({"config": {**CONFIG, "eos_token_id": 1}, "added_tokens": {"<|im_end|>": 7}}, {}, (1, 7)),
        ({"config": {**CONFIG, "eos_token_id": 1},
          "tokenizer": {"added_tokens": [{"id": 7, "content": "<|im_end|>"}, 5]}}, {}, (1, 7)),
    ],
)  # fmt: skip
def test_every_source_of_ends_counts(
    tmp_path: Path, files: dict[str, Any], tokenizer: dict[str, str], stops: tuple[int, ...]
) -> None:
    facts = read_folder_facts(_folder(tmp_path, **files), tokenizer)
    assert facts.stop_tokens == stops


@pytest.mark.parametrize(
    ("config", "length"),
    [
        ({"max_position_embeddings": 8192}, 8192),
        ({"n_positions": 1024}, 1024),
        ({"text_config": {"max_position_embeddings": 77}}, 77),
        ({"max_position_embeddings": True, "seq_length": 5}, 5),
    ],
)
def test_the_context_length(tmp_path: Path, config: dict[str, Any], length: int) -> None:
    folder = _folder(tmp_path, config={**config, "eos_token_id": 1})
    assert read_folder_facts(folder, {}).context_length == length


@pytest.mark.parametrize(
    ("files", "tokenizer", "bos"),
    [
        ({"config": {**CONFIG, "bos_token_id": 1}}, {}, 1),
        ({"config": {**CONFIG, "bos_token_id": None}}, {"bos_token_id": "6"}, 6),
        ({"config": CONFIG, "generation_config": {"bos_token_id": 3}}, {}, 3),
        ({"config": CONFIG, "tokenizer_config": {
            "bos_token": {"content": "</s>"}, "added_tokens_decoder": ADDED}}, {}, 2),
        ({"config": CONFIG}, {}, None),
    ],
)  # fmt: skip
def test_the_beginning(
    tmp_path: Path, files: dict[str, Any], tokenizer: dict[str, str], bos: int | None
) -> None:
    files["config"] = {**files["config"], "eos_token_id": 8}
    assert read_folder_facts(_folder(tmp_path, **files), tokenizer).bos == bos


def test_templates_in_the_order_of_their_authority(tmp_path: Path) -> None:
    folder = _folder(tmp_path, config={**CONFIG, "eos_token_id": 1})
    assert read_folder_facts(folder, {}).chat_template == ""
    several = [{"name": "tools", "template": "t"}, {"name": "default", "template": "d"}]
    write_json(folder / "tokenizer_config.json", {"chat_template": several})
    assert read_folder_facts(folder, {}).chat_template == "d"
    write_json(folder / "chat_template.json", {"chat_template": "of a file"})
    assert read_folder_facts(folder, {}).chat_template == "of a file"
    (folder / "chat_template.jinja").write_text("own Ü", encoding="utf-8")
    assert read_folder_facts(folder, {}).chat_template == "own Ü"
    assert read_folder_facts(folder, {"chat_template": "IR"}).chat_template == "IR"


def test_what_is_not_said_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ShardCorrupt, match=r"config\.json is missing"):
        read_folder_facts(tmp_path, {})
    write_json(tmp_path / "config.json", {"model_type": "llama", "eos_token_id": 1})
    with pytest.raises(StageFailed, match="how long"):
        read_folder_facts(tmp_path, {})
    write_json(tmp_path / "config.json", CONFIG)
    with pytest.raises(StageFailed, match="no token that ends"):
        read_folder_facts(tmp_path, {})
    write_json(tmp_path / "config.json", {**CONFIG, "eos_token_id": 1})
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(ShardCorrupt, match=r"chat_template\.jinja cannot be read"):
        read_folder_facts(tmp_path, {})
    (tmp_path / "chat_template.jinja").write_bytes(b"x" * (2 << 20))
    with pytest.raises(StageFailed, match="too large"):
        read_folder_facts(tmp_path, {})
