from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from meshinfer.core.request import ChatMessage
from meshinfer.engine.tokenizer import GenAiTokenizer
from meshinfer.errors import StageFailed
from meshinfer.weights.export.settings import ModelSettings
from meshinfer.weights.export.tokenizer import load_tokenizer, read_facts, save_tokenizer
from meshinfer.weights.recipe import Recipe, WeightFormat
from tests.export.tiny_checkpoints import TEMPLATE, make_tokenizer

SETTINGS = ModelSettings("llama", 5, 320, 512, is_tied=True)
TEXTS = (
    "The quick brown fox",
    "  two spaces, a\ttab and\n\nlines  ",
    "Größe, Übung, 你好, 👩‍👩‍👧‍👦 and é",
    "x" * 300,
)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    make_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 5, "bos_token_id": 0}))
    return tmp_path


@pytest.mark.slow
def test_text_comes_back_as_transformers_gives_it(checkpoint: Path) -> None:
    theirs = load_tokenizer(checkpoint)
    save_tokenizer(load_tokenizer(checkpoint), checkpoint)
    ours = GenAiTokenizer.load(checkpoint)
    for text in TEXTS:
        ids = ours.encode_text(text)
        assert ids == theirs.encode(text)
        parts = [ours.vocabulary()[token] for token in ids]
        assert b"".join(parts).decode() == theirs.decode(ids) == text
        assert "Ġ".encode() not in b"".join(parts)


@pytest.mark.slow
def test_the_chat_template_comes_along(checkpoint: Path) -> None:
    theirs = load_tokenizer(checkpoint)
    save_tokenizer(load_tokenizer(checkpoint), checkpoint)
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Größe?"}]
    expected = theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    ours = GenAiTokenizer.load(checkpoint)
    assert ours.encode_chat([ChatMessage(**message) for message in messages]) == expected


def facts_of(folder: Path, recipe: Recipe | None = None) -> Any:
    chosen = recipe or Recipe(WeightFormat.INT4_ASYM, 64, awq=True)
    return read_facts(folder, SETTINGS, load_tokenizer(folder), chosen, "BF16")


def test_ends_are_named_by_every_source(checkpoint: Path) -> None:
    (checkpoint / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 8]}))
    facts = facts_of(checkpoint)
    # 5: config.json, 7 and 8: generation_config.json, 2: the tokenizer's, 0: <|endoftext|>
    assert facts.stop_tokens == (0, 2, 5, 7, 8)
    assert facts.bos == 0
    assert facts.context_length == 512
    assert facts.chat_template == TEMPLATE


def test_the_form_of_the_weights_is_told(checkpoint: Path) -> None:
    assert facts_of(checkpoint).weights == "int4-asym group 64 awq"
    assert facts_of(checkpoint, Recipe(WeightFormat.ORIGINAL)).weights == "bf16"


@pytest.mark.parametrize("place", ["chat_template.jinja", "tokenizer_config.json"])
def test_a_template_is_found_wherever_it_lies(checkpoint: Path, place: str) -> None:
    (checkpoint / "chat_template.jinja").unlink()
    if place.endswith(".jinja"):
        (checkpoint / place).write_text("{{ messages[0].content }}")
    else:
        settings = json.loads((checkpoint / place).read_text())
        settings["chat_template"] = "{{ messages[0].content }}"
        (checkpoint / place).write_text(json.dumps(settings))
    assert facts_of(checkpoint).chat_template == "{{ messages[0].content }}"


def test_a_checkpoint_without_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(StageFailed, match="has no tokenizer"):
        load_tokenizer(tmp_path)
