"""What the small files beside a checkpoint say of it: context length, end tokens, template.

A folder with config.json and its companions enters, ModelFacts leave. Called by `prebuilt`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from meshinfer.errors import ShardCorrupt, StageFailed
from meshinfer.weights.checkpoint import CONFIG, read_config, read_json
from meshinfer.weights.end_tokens import end_tokens
from meshinfer.weights.facts import ModelFacts

TokenizerInfo = Mapping[str, str]
"""rt_info of a tokenizer's IR: `eos_token_id`, `bos_token_id`, `chat_template`, all as text."""

_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length",
                 "max_seq_len", "n_ctx")  # fmt: skip
_MOST_TEMPLATE_BYTES = 1 << 20
_CHOOSE = "Choose another model."


def read_folder_facts(folder: Path, tokenizer: TokenizerInfo, weights: str = "") -> ModelFacts:
    """Raises ShardCorrupt (config.json is missing or no JSON), StageFailed (it does not say how
    long the context is, or nothing names an end)."""
    config = read_config(folder)
    text = config.get("text_config")
    parts: list[Mapping[str, Any]] = [config, text] if isinstance(text, Mapping) else [config]
    generation = _optional(folder / "generation_config.json")
    settings = _optional(folder / "tokenizer_config.json")
    template = chat_template(folder, settings, tokenizer)
    special = special_tokens(folder, settings)
    named = [part.get("eos_token_id") for part in (*parts, generation)]
    named += [settings.get("eos_token"), _number(tokenizer.get("eos_token_id"))]
    stops = end_tokens(named, template, special)
    if not stops:
        raise StageFailed("The model names no token that ends an answer.", _CHOOSE)
    architecture = config.get("model_type")
    return ModelFacts(
        architecture=architecture if isinstance(architecture, str) else "unknown",
        context_length=_context_length(parts),
        stop_tokens=stops,
        bos=_bos(parts, generation, settings, tokenizer, special),
        chat_template=template,
        weights=weights or "original",
    )


def chat_template(folder: Path, settings: Mapping[str, Any], tokenizer: TokenizerInfo) -> str:
    """The one that openvino_genai will use: of the tokenizer's IR, else a file of its own, else of
    tokenizer_config.json; empty when there is none. Of several named ones it is "default"."""
    own = tokenizer.get("chat_template", "")
    if own:
        return own
    file = folder / "chat_template.jinja"
    if file.is_file():
        if file.stat().st_size > _MOST_TEMPLATE_BYTES:
            raise StageFailed("The chat template is too large to be one.", _CHOOSE)
        try:
            return file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ShardCorrupt(f"{file.name} cannot be read.", "Fetch it again.") from error
    for content in (_optional(folder / "chat_template.json"), settings):
        found = _template(content.get("chat_template"))
        if found:
            return found
    return ""


def special_tokens(folder: Path, settings: Mapping[str, Any]) -> dict[str, int]:
    """Control tokens and their ids, from every file that lists them."""
    found: dict[str, int] = {}
    for text, number in _added(settings.get("added_tokens_decoder")):
        found[text] = number
    for text, number in _optional(folder / "added_tokens.json").items():
        if type(number) is int:
            found.setdefault(text, number)
    listed = _optional(folder / "tokenizer.json").get("added_tokens")
    for entry in listed if isinstance(listed, list) else ():
        match entry:
            case {"id": int(number), "content": str(text)}:
                found.setdefault(text, number)
    return found


def _added(decoder: Any) -> Iterator[tuple[str, int]]:
    """`{"7": {"content": "<eos>"}}`"""
    for key, entry in decoder.items() if isinstance(decoder, Mapping) else ():
        match entry:
            case {"content": str(text)} if str(key).isdecimal():
                yield text, int(key)


def _template(value: Any) -> str:
    match value:
        case str():
            return value
        case [*several]:
            named = {
                one["name"]: one["template"]
                for one in several
                if isinstance(one, Mapping) and {"name", "template"} <= set(one)
            }
            chosen = named.get("default", next(iter(named.values()), ""))
            return chosen if isinstance(chosen, str) else ""
        case _:
            return ""


def _context_length(parts: list[Mapping[str, Any]]) -> int:
    for part in parts:
        for key in _CONTEXT_KEYS:
            length = part.get(key)
            if type(length) is int and length > 0:
                return length
    raise StageFailed(f"{CONFIG} does not say how long the model's context is.", _CHOOSE)


def _bos(
    parts: list[Mapping[str, Any]],
    generation: Mapping[str, Any],
    settings: Mapping[str, Any],
    tokenizer: TokenizerInfo,
    special: Mapping[str, int],
) -> int | None:
    for part in (generation, *parts):
        number = part.get("bos_token_id")
        if type(number) is int and number >= 0:
            return number
    match settings.get("bos_token"):
        case str(text) | {"content": str(text)} if text in special:
            return special[text]
    return _number(tokenizer.get("bos_token_id"))


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}
