"""A checkpoint's tokenizer becomes OpenVINO's, and what it says about a model's ends is read.

A folder enters; tokenizer and detokenizer lie in the work folder, ModelFacts leave. Called by the
child. The tokenizer is the checkpoint's own, never one guessed from a vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from meshinfer.errors import StageFailed
from meshinfer.weights.checkpoint import CONFIG, read_json
from meshinfer.weights.cut import openvino_errors
from meshinfer.weights.disk import disk_errors
from meshinfer.weights.end_tokens import end_tokens
from meshinfer.weights.export.settings import ModelSettings
from meshinfer.weights.facts import ModelFacts
from meshinfer.weights.recipe import Recipe

GENERATION = "generation_config.json"
TOKENIZER_SETTINGS = "tokenizer_config.json"
_FILES = (
    "tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "merges.txt",
)  # fmt: skip
_ANOTHER = "Choose a GGUF or an OpenVINO IR of this model."


def load_tokenizer(folder: Path) -> Any:
    """transformers' tokenizer. Raises StageFailed."""
    from transformers import AutoTokenizer

    if not any((folder / name).is_file() for name in _FILES):  # transformers makes an empty one
        raise StageFailed(f"The checkpoint has no tokenizer ({_FILES[0]}).", "Fetch it again.")
    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # each kind of tokenizer fails in its own way
        text = str(error).strip().splitlines()
        raise StageFailed(
            f"The checkpoint's tokenizer cannot be read: {text[0][:200] if text else ''}", _ANOTHER
        ) from error


def save_tokenizer(tokenizer: Any, work: Path) -> None:
    """Write openvino_tokenizer and openvino_detokenizer. Raises StageFailed, DiskFull."""
    import openvino as ov
    from openvino_tokenizers import convert_tokenizer

    tokenizer.padding_side = tokenizer.truncation_side = "left"
    try:
        encoder, decoder = convert_tokenizer(tokenizer, with_detokenizer=True)
    except Exception as error:  # each kind of tokenizer fails in its own way
        raise StageFailed(
            f"OpenVINO cannot convert a {type(tokenizer).__name__}: {str(error)[:200]}", _ANOTHER
        ) from error
    with disk_errors(work), openvino_errors("Saving the tokenizer"):
        ov.save_model(encoder, work / "openvino_tokenizer.xml")
        ov.save_model(decoder, work / "openvino_detokenizer.xml")


def read_facts(
    folder: Path, settings: ModelSettings, tokenizer: Any, recipe: Recipe, dtype: str
) -> ModelFacts:
    """Raises StageFailed when nothing says which token ends an answer, or how long a context is."""
    generation, own = (_optional(folder / name) for name in (GENERATION, TOKENIZER_SETTINGS))
    config = read_json(folder / CONFIG)
    template = _template(tokenizer)
    special = _special_tokens(tokenizer)
    named = [
        generation.get("eos_token_id"),
        config.get("eos_token_id"),
        own.get("eos_token"),
        tokenizer.eos_token_id,
    ]
    stops = end_tokens(named, template, special)
    if not stops:
        raise StageFailed("The checkpoint names no token that ends an answer.", _ANOTHER)
    context = settings.context_length or tokenizer.model_max_length
    if not 0 < context < 1 << 31:  # transformers says 10^30 where it does not know
        raise StageFailed("config.json does not say how long the model's context is.", _ANOTHER)
    bos = tokenizer.bos_token_id
    if bos is None:
        bos = config.get("bos_token_id")
    return ModelFacts(
        architecture=settings.architecture,
        context_length=context,
        stop_tokens=stops,
        bos=bos if type(bos) is int else None,
        chat_template=template,
        weights=str(recipe) if str(recipe) != "original" else dtype.lower(),
    )


def _template(tokenizer: Any) -> str:
    """The chat template, wherever the checkpoint keeps it; of several the default one."""
    found = tokenizer.chat_template
    if isinstance(found, Mapping):
        found = found.get("default")
    return found if isinstance(found, str) else ""


def _special_tokens(tokenizer: Any) -> dict[str, int]:
    """Control tokens and their ids: those marked as special, and all that were added to the
    vocabulary of text."""
    return {
        token.content: number
        for number, token in tokenizer.added_tokens_decoder.items()
        if token.special or token.content in tokenizer.all_special_tokens
    }


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}
